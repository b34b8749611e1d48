//! Providers' credentials, sealed for this Envoy: shared data is one namespace for all that run in it.

use super::Stamp;
use super::bytes::{Fields, Writer};
use super::store::{SharedData, StoreFault, keys, update};

/// A credential as it stands in its entry, `id` mod the boot's count of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: u32,
    /// Of its last change; part of what it is sealed with.
    pub stamp: Stamp,
    /// Empty: withdrawn.
    pub sealed: Vec<u8>,
}

impl Entry {
    pub fn read<S: SharedData>(store: &S, id: u32, count: u32) -> Result<Option<Self>, StoreFault> {
        let key = keys::credential(id.checked_rem(count).unwrap_or(0));
        let entry = store.get(&key)?.and_then(|(value, _)| Self::decode(&value));
        Ok(entry.filter(|e| e.id == id))
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let mut f = Fields::new(value)?;
        Some(Self { id: f.u32()?, stamp: f.stamp()?, sealed: f.rest().to_vec() })
    }
}

/// Writes a credential, unless what is there is as new. Returns whether it did.
pub fn apply<S: SharedData>(store: &S, count: u32, id: u32, stamp: Stamp, sealed: &[u8]) -> Result<bool, StoreFault> {
    let key = keys::credential(id.checked_rem(count).unwrap_or(0));
    update(store, &key, |value| {
        let newer = value.and_then(Entry::decode).is_none_or(|old| old.stamp < stamp);
        newer.then(|| Writer::new(20 + sealed.len()).u32(id).stamp(stamp).bytes(sealed))
    })
}
