//! The one entry that every request reads first.

use super::bytes::{Fields, Writer};
use super::store::{SharedData, StoreFault, keys, update};
use super::{Stamp, Times};

/// How far the state of this Envoy has come. Every field only rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// All key changes up to here are in the buckets.
    pub keys: Stamp,
    /// Buckets stamped under this read as empty.
    pub floor: Stamp,
    /// A resync has ended in this boot.
    pub complete: bool,
    /// When the last mark came.
    pub confirmed: Times,
    /// Of the list of blocked owners that is in its entry. Zero: there is none yet.
    pub blocked: Stamp,
    /// Of the last such list that `keys` has reached: what is reported as in force.
    pub announced: Stamp,
    /// Of the policy whose parts are there.
    pub policy: Stamp,
    /// Counts the changes of credentials: caches of opened ones go by it.
    pub credentials: u64,
    /// Control-plane time minus the monotonic clock, ns.
    pub clock: i64,
}

impl Head {
    /// All zero where there is none, or one of another layout: cold.
    pub fn read<S: SharedData>(store: &S) -> Result<Self, StoreFault> {
        Ok(store.get(keys::HEAD)?.and_then(|(value, _)| Self::decode(&value)).unwrap_or_default())
    }

    /// Raises some fields. `change` gets the present head; what it lowers stays as it was.
    pub fn raise<S: SharedData>(store: &S, mut change: impl FnMut(&mut Self)) -> Result<(), StoreFault> {
        update(store, keys::HEAD, |value| {
            let old = value.and_then(Self::decode).unwrap_or_default();
            let mut new = old;
            change(&mut new);
            let new = new.not_below(&old);
            (new != old).then(|| new.encode())
        })?;
        Ok(())
    }

    /// Control-plane time, ns since 1970.
    pub fn control_plane_time(&self, mono: u64) -> i64 {
        i64::try_from(mono).unwrap_or(i64::MAX).saturating_add(self.clock)
    }

    fn not_below(self, old: &Self) -> Self {
        let keys = self.keys.max(old.keys);
        let blocked = self.blocked.max(old.blocked);
        Self {
            keys,
            floor: self.floor.max(old.floor),
            complete: self.complete || old.complete,
            confirmed: Times {
                mono: self.confirmed.mono.max(old.confirmed.mono),
                // The wall clock may have been set back.
                wall: if self.confirmed.mono >= old.confirmed.mono { self.confirmed.wall } else { old.confirmed.wall },
            },
            blocked,
            announced: if keys >= blocked { blocked } else { old.announced },
            policy: self.policy.max(old.policy),
            credentials: self.credentials.max(old.credentials),
            clock: self.clock,
        }
    }

    fn encode(&self) -> Vec<u8> {
        Writer::new(113)
            .stamp(self.keys)
            .stamp(self.floor)
            .u8(u8::from(self.complete))
            .u64(self.confirmed.mono)
            .u64(self.confirmed.wall)
            .stamp(self.blocked)
            .stamp(self.announced)
            .stamp(self.policy)
            .u64(self.credentials)
            .i64(self.clock)
            .done()
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let mut f = Fields::new(value)?;
        Some(Self {
            keys: f.stamp()?,
            floor: f.stamp()?,
            complete: f.u8()? != 0,
            confirmed: Times { mono: f.u64()?, wall: f.u64()? },
            blocked: f.stamp()?,
            announced: f.stamp()?,
            policy: f.stamp()?,
            credentials: f.u64()?,
            clock: f.i64()?,
        })
    }
}
