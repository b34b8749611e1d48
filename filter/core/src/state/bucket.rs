//! Keys, in buckets: the first bits of a key's hash say which.

use super::Stamp;
use super::bytes::{Fields, Writer};
use super::rule::{self, Rule};
use super::store::{SharedData, StoreFault, keys, update};

/// The exact content of one bucket at its stamp: the records of `record`, sorted by hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    pub stamp: Stamp,
    value: Vec<u8>,
}

/// Bytes of a value before its records.
const HEADER: usize = 17;

impl Bucket {
    /// Empty, and stamped zero, where it was never written.
    pub fn read<S: SharedData>(store: &S, index: u32) -> Result<Self, StoreFault> {
        let Some((value, _)) = store.get(&keys::bucket(index))? else { return Ok(Self::default()) };
        Ok(stamp_of(&value).map(|stamp| Self { stamp, value }).unwrap_or_default())
    }

    pub fn records(&self) -> &[u8] {
        self.value.get(HEADER..).unwrap_or_default()
    }
}

/// Writes a bucket, unless what is there is as new.
pub fn apply<S: SharedData>(store: &S, index: u32, stamp: Stamp, records: &[u8]) -> Result<(), StoreFault> {
    update(store, &keys::bucket(index), |present| {
        let newer = present.and_then(stamp_of).is_none_or(|there| there < stamp || !rule::on(Rule::S3));
        newer.then(|| Writer::new(HEADER + records.len()).stamp(stamp).bytes(records))
    })?;
    Ok(())
}

fn stamp_of(value: &[u8]) -> Option<Stamp> {
    Fields::new(value)?.stamp()
}
