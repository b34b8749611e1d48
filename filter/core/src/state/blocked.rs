//! Blocked owners: one sorted list, because blocking an org with half a million keys is to be one small message.

use super::Stamp;
use super::bytes::{Fields, Writer};
use super::rule::{self, Rule};
use super::store::{SharedData, StoreFault, keys, update};
use crate::noun::{Owner, OwnerKind};

/// The list as it stands in its entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocked {
    pub stamp: Stamp,
    /// Sorted.
    listed: Vec<Owner>,
    /// Those that the newest list lacks. They count as blocked until the keys have come as far as that list: a deleted
    /// owner's keys may still be in their buckets. Sorted.
    leaving: Vec<Owner>,
}

/// Bounds what an Envoy keeps; the control plane sends no longer list.
pub const MAX_BLOCKED: usize = 200_000;

impl Blocked {
    pub fn read<S: SharedData>(store: &S) -> Result<Self, StoreFault> {
        Ok(store.get(keys::BLOCKED)?.and_then(|(value, _)| Self::decode(&value)).unwrap_or_default())
    }

    /// Replaces the list, unless the one there is as new. `reached` is how far the keys have come: owners that were
    /// leaving a list that is reached have left.
    pub fn apply<S: SharedData>(
        store: &S,
        stamp: Stamp,
        mut listed: Vec<Owner>,
        reached: Stamp,
    ) -> Result<(), StoreFault> {
        listed.sort_unstable();
        listed.dedup();
        update(store, keys::BLOCKED, |value| {
            let old = value.and_then(Self::decode).unwrap_or_default();
            if old.stamp >= stamp && rule::on(Rule::S10Stamp) {
                return None;
            }
            let mut leaving = old.listed;
            if reached < old.stamp {
                leaving.extend(old.leaving);
            }
            leaving.retain(|owner| listed.binary_search(owner).is_err());
            leaving.sort_unstable();
            leaving.dedup();
            Some(Self { stamp, listed: listed.clone(), leaving }.encode())
        })?;
        Ok(())
    }

    /// Whether `owner` counts as blocked while the keys have come as far as `reached`.
    pub fn blocks(&self, owner: Owner, reached: Stamp) -> bool {
        self.listed.binary_search(&owner).is_ok()
            || (reached < self.stamp && rule::on(Rule::S10Leaving) && self.leaving.binary_search(&owner).is_ok())
    }

    fn encode(&self) -> Vec<u8> {
        let mut w = Writer::new(24 + 5 * (self.listed.len() + self.leaving.len())).stamp(self.stamp);
        for list in [&self.listed, &self.leaving] {
            w = w.u32(u32::try_from(list.len()).unwrap_or(u32::MAX));
            for owner in list {
                w = w.u8(owner.kind as u8).u32(owner.id);
            }
        }
        w.done()
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let mut f = Fields::new(value)?;
        let stamp = f.stamp()?;
        let mut list = || -> Option<Vec<Owner>> {
            let count = f.u32()?;
            (0..count).map(|_| Some(Owner { kind: OwnerKind::from_u8(f.u8()?)?, id: f.u32()? })).collect()
        };
        Some(Self { stamp, listed: list()?, leaving: list()? })
    }
}
