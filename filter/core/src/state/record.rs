//! The 48-byte record of one key, and buckets of them.
//!
//! Both planes cut the space of key hashes into the same buckets, by the hash's first bits. A bucket's records are sorted
//! by hash, without doubles. Integers are little endian; an instant is whole seconds of Unix time.

use std::ops::RangeInclusive;

/// Size of an encoded record.
pub const RECORD_BYTES: usize = 48;

/// Bits of [`KeyRecord::flags`].
#[derive(Clone, Copy, Debug)]
pub struct Flags;

impl Flags {
    /// Known, but to be refused.
    pub const DISABLED: u32 = 1;
}

/// What an Envoy knows about one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRecord {
    /// First half of the SHA-256 of the whole key.
    pub hash: [u8; 16],
    pub org: u32,
    pub team: u32,
    pub user: u32,
    pub key: u32,
    /// Id of the profile that says what the key may do.
    pub profile: u32,
    /// 0: never.
    pub expires_unix: u64,
    /// See [`Flags`].
    pub flags: u32,
}

impl KeyRecord {
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut rest = bytes.as_mut_slice();
        put(&mut rest, self.hash);
        for word in [self.org, self.team, self.user, self.key, self.profile] {
            put(&mut rest, word.to_le_bytes());
        }
        put(&mut rest, self.expires_unix.to_le_bytes());
        put(&mut rest, self.flags.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Self {
        let mut rest = bytes.as_slice();
        // Fields are evaluated in the order written here, which is the order of the bytes.
        Self {
            hash: take(&mut rest),
            org: u32::from_le_bytes(take(&mut rest)),
            team: u32::from_le_bytes(take(&mut rest)),
            user: u32::from_le_bytes(take(&mut rest)),
            key: u32::from_le_bytes(take(&mut rest)),
            profile: u32::from_le_bytes(take(&mut rest)),
            expires_unix: u64::from_le_bytes(take(&mut rest)),
            flags: u32::from_le_bytes(take(&mut rest)),
        }
    }

    pub fn disabled(&self) -> bool {
        self.flags & Flags::DISABLED != 0
    }
}

/// The record of `hash` among a bucket's `records`.
pub fn find(records: &[u8], hash: &[u8; 16]) -> Option<KeyRecord> {
    let (records, _) = records.as_chunks::<RECORD_BYTES>();
    let at = records.binary_search_by(|record| record[..16].cmp(hash.as_slice())).ok()?;
    records.get(at).map(KeyRecord::decode)
}

/// Whether `records` are whole records, strictly ascending by hash: what [`find`] relies on.
pub fn is_sorted(records: &[u8]) -> bool {
    let (records, rest) = records.as_chunks::<RECORD_BYTES>();
    rest.is_empty() && records.is_sorted_by(|a, b| a[..16] < b[..16])
}

/// The bucket of a key among `count`, a power of two.
pub fn bucket_of(hash: &[u8; 16], count: u32) -> u32 {
    bucket_of_prefix(prefix_of(hash), count)
}

/// The first 32 bits of a hash: all that the choice of a bucket looks at.
pub fn prefix_of(hash: &[u8; 16]) -> u32 {
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]])
}

/// The bucket of every hash that begins with `prefix`.
pub fn bucket_of_prefix(prefix: u32, count: u32) -> u32 {
    // For a power of two these are the first bits; and below `count` for any other.
    ((u64::from(prefix) * u64::from(count)) >> 32) as u32
}

/// The prefixes that fall into bucket `index` of `count`, a power of two. Empty where there is no such bucket.
pub fn prefixes_of(index: u32, count: u32) -> RangeInclusive<u32> {
    if index >= count {
        return RangeInclusive::new(1, 0);
    }
    let first_at = |index: u64| (index << 32).div_ceil(u64::from(count));
    let last = first_at(u64::from(index) + 1) - 1;
    first_at(u64::from(index)) as u32..=last as u32
}

fn put<const N: usize>(out: &mut &mut [u8], value: [u8; N]) {
    if let Some((head, rest)) = std::mem::take(out).split_first_chunk_mut::<N>() {
        *head = value;
        *out = rest;
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
    let Some((head, rest)) = bytes.split_first_chunk::<N>() else { return [0; N] };
    *bytes = rest;
    *head
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(hash: [u8; 16]) -> KeyRecord {
        KeyRecord { hash, org: 1, team: 2, user: 3, key: 4, profile: 5, expires_unix: 6, flags: Flags::DISABLED }
    }

    #[test]
    fn the_layout_is_fixed() {
        let bytes = record(std::array::from_fn(|i| i as u8)).encode();
        let text = concat!(
            "000102030405060708090a0b0c0d0e0f",
            "0100000002000000030000000400000005000000",
            "0600000000000000",
            "01000000"
        );
        assert_eq!(hex::encode(bytes), text);
    }

    #[test]
    fn only_whole_sorted_records_without_doubles_are_sorted() {
        let of = |hashes: &[u8]| hashes.iter().flat_map(|h| record([*h; 16]).encode()).collect::<Vec<_>>();
        assert!(is_sorted(&[]) && is_sorted(&of(&[7])) && is_sorted(&of(&[1, 2, 3])));
        assert!(!is_sorted(&of(&[2, 1])) && !is_sorted(&of(&[1, 1])) && !is_sorted(&of(&[1, 2])[..95]));
    }

    #[test]
    fn buckets_are_the_first_bits() {
        let hash = *b"\xab\xcd\xef\x01............";
        for (count, bucket) in [(1, 0), (2, 1), (16, 0xa), (65_536, 0xabcd), (1 << 31, 0xabcd_ef01 >> 1)] {
            assert_eq!(bucket_of(&hash, count), bucket, "of {count}");
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(
            hash: [u8; 16], org: u32, team: u32, user: u32, key: u32, profile: u32, expires_unix: u64, flags: u32,
        ) {
            let record = KeyRecord { hash, org, team, user, key, profile, expires_unix, flags };
            prop_assert_eq!(KeyRecord::decode(&record.encode()), record);
        }

        #[test]
        fn every_record_is_found_and_no_other(hashes: std::collections::BTreeSet<[u8; 16]>, other: [u8; 16]) {
            let records: Vec<u8> = hashes.iter().flat_map(|h| record(*h).encode()).collect();
            prop_assert!(is_sorted(&records));
            for hash in &hashes {
                prop_assert_eq!(find(&records, hash), Some(record(*hash)));
            }
            prop_assert_eq!(find(&records, &other).is_some(), hashes.contains(&other));
        }

        #[test]
        fn a_prefix_lies_in_its_own_bucket_alone(prefix: u32, bits in 0u32..32) {
            let count = 1 << bits;
            let bucket = bucket_of_prefix(prefix, count);
            prop_assert!(bucket < count);
            prop_assert!(prefixes_of(bucket, count).contains(&prefix));
            prop_assert!(bucket == 0 || *prefixes_of(bucket - 1, count).end() < prefix);
            prop_assert!(bucket + 1 == count || *prefixes_of(bucket + 1, count).start() > prefix);
            prop_assert!(prefixes_of(count, count).is_empty());
        }
    }
}
