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

/// Writes a credential, unless what is there is as new. Returns whether it did. A withdrawal takes away only the
/// credential it names: its place may be another one's already.
pub fn apply<S: SharedData>(store: &S, count: u32, id: u32, stamp: Stamp, sealed: &[u8]) -> Result<bool, StoreFault> {
    let key = keys::credential(id.checked_rem(count).unwrap_or(0));
    update(store, &key, |value| {
        let wins = |old: Entry| old.stamp < stamp && (old.id == id || !sealed.is_empty());
        value
            .and_then(Entry::decode)
            .is_none_or(wins)
            .then(|| Writer::new(20 + sealed.len()).u32(id).stamp(stamp).bytes(sealed))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::store::testing::Map;

    #[test]
    fn a_late_withdrawal_leaves_who_has_the_place_now() {
        let (store, at) = (Map::default(), |revision| Stamp::new(1, revision));
        let (gone, came) = (3, 3 + 8);
        assert_eq!(apply(&store, 8, gone, at(1), b"old"), Ok(true));
        assert_eq!(apply(&store, 8, came, at(2), b"new"), Ok(true));
        assert_eq!(apply(&store, 8, gone, at(3), b""), Ok(false));
        assert_eq!(Entry::read(&store, came, 8).unwrap().unwrap().sealed, b"new");
        assert_eq!(apply(&store, 8, came, at(3), b""), Ok(true));
        assert_eq!(Entry::read(&store, came, 8).unwrap().unwrap().sealed, b"");
    }
}
