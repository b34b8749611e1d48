//! A key's text, and what the store keeps of it.

use sha2::{Digest as _, Sha256};

use crate::credentials::{Secret, random};
use crate::store::{Fault, WriteError};

/// The first four bytes of a hash, as they are: by it Envoys' key buckets are cut.
pub(in crate::store) fn prefix(hash: &[u8]) -> i32 {
    hash.first_chunk::<4>().map_or(0, |first| i32::from_be_bytes(*first))
}

/// A new key: public id, the key itself, its hash.
pub(super) struct Fresh {
    pub(super) id: String,
    /// `None` where the key was made elsewhere.
    pub(super) secret: Option<Secret>,
    pub(super) hash: Vec<u8>,
}

impl Fresh {
    pub(super) fn make() -> Result<Self, WriteError> {
        let id = random::base32::<12>()?;
        let key = format!("sk-sg-{id}-{}", hex::encode(random::bytes::<16>()?));
        let hash = Sha256::digest(key.as_bytes()).to_vec();
        Ok(Self { id, secret: Some(Secret::new(key)), hash })
    }

    pub(super) fn given(hash: &str) -> Result<Self, Fault> {
        let bytes = hex::decode(hash).ok().filter(|bytes| bytes.len() == 32);
        let bytes = bytes.ok_or_else(|| Fault::new("hash", "must be 64 hex digits: the SHA-256 of the whole key"))?;
        let id = format!("hash-{}", hash.get(..12).unwrap_or_default().to_ascii_lowercase());
        Ok(Self { id, secret: None, hash: bytes })
    }

    pub(super) fn of(hash: Option<&str>) -> Result<Self, WriteError> {
        match hash {
            Some(hash) => Ok(Self::given(hash)?),
            None => Self::make(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_128_random_bits_behind_a_public_id() {
        let fresh = Fresh::make().unwrap();
        let key = fresh.secret.unwrap();
        let parts: Vec<&str> = key.expose().splitn(4, '-').collect();
        assert_eq!((parts[0], parts[1], parts[2].len(), parts[3].len()), ("sk", "sg", 12, 32));
        assert_eq!(parts[2], fresh.id);
        assert_eq!(fresh.hash, Sha256::digest(key.expose().as_bytes()).to_vec());
        assert!(!format!("{key:?}").contains(parts[3]));
    }

    #[test]
    fn a_prefix_is_a_hashs_first_four_bytes() {
        assert_eq!(prefix(&[0xff, 0, 0, 1, 9]), i32::from_be_bytes([0xff, 0, 0, 1]));
    }
}
