//! The identity of an Envoy process, and how many entries of each kind it has.

use super::bytes::{Fields, Writer};
use super::store::{Cas, SharedData, StoreFault, keys, update};
use crate::proto::dataplane::Welcome;

/// Created before the process's first Hello, so that there is never a second identity; its counts are fixed by the first
/// Welcome and hold as long as the process lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Random.
    pub id: u64,
    /// `None` until the first Welcome.
    pub sizes: Option<Sizes>,
}

/// How many entries of each kind there are. None is 0; `buckets` is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub seats: u32,
    pub buckets: u32,
    pub profiles: u32,
    pub credentials: u32,
    pub policy_parts: u32,
}

/// Bounds for what a Welcome may ask for: more would be a fault, or an attack on the Envoy's memory.
const MAX_BUCKETS: u32 = 1 << 20;
const MAX_ENTRIES: u32 = 1 << 16;

impl Boot {
    pub fn read<S: SharedData>(store: &S) -> Result<Option<Self>, StoreFault> {
        Ok(store.get(keys::BOOT)?.and_then(|(value, _)| Self::decode(&value)))
    }

    /// The process's identity, created with `random` where there is none yet.
    pub fn read_or_create<S: SharedData>(store: &S, random: u64) -> Result<Self, StoreFault> {
        if let Some(boot) = Self::read(store)? {
            return Ok(boot);
        }
        let mine = Self { id: random, sizes: None };
        if store.set(keys::BOOT, &mine.encode(), Cas::Absent)? {
            return Ok(mine);
        }
        Self::read(store)?.ok_or(StoreFault::Contended)
    }

    /// Fixes the counts, unless they are fixed already. Returns the boot as it is then.
    pub fn fix<S: SharedData>(store: &S, sizes: Sizes) -> Result<Option<Self>, StoreFault> {
        update(store, keys::BOOT, |value| {
            let boot = Self::decode(value?)?;
            boot.sizes.is_none().then(|| Self { sizes: Some(sizes), ..boot }.encode())
        })?;
        Self::read(store)
    }

    fn encode(&self) -> Vec<u8> {
        let s = self.sizes.unwrap_or(Sizes { seats: 0, buckets: 0, profiles: 0, credentials: 0, policy_parts: 0 });
        Writer::new(29)
            .u64(self.id)
            .u8(u8::from(self.sizes.is_some()))
            .u32(s.seats)
            .u32(s.buckets)
            .u32(s.profiles)
            .u32(s.credentials)
            .u32(s.policy_parts)
            .done()
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let mut f = Fields::new(value)?;
        let id = f.u64()?;
        let fixed = f.u8()? != 0;
        let sizes = Sizes {
            seats: f.u32()?,
            buckets: f.u32()?,
            profiles: f.u32()?,
            credentials: f.u32()?,
            policy_parts: f.u32()?,
        };
        Some(Self { id, sizes: fixed.then_some(sizes) })
    }
}

impl Sizes {
    /// `None` where a count is 0, too large, or the buckets' no power of two.
    pub fn from_welcome(w: &Welcome) -> Option<Self> {
        let good = |n: u32| n > 0 && n <= MAX_ENTRIES;
        let all = [w.seats, w.profiles, w.credentials, w.policy_parts].into_iter().all(good);
        (all && w.buckets.is_power_of_two() && w.buckets <= MAX_BUCKETS).then_some(Self {
            seats: w.seats,
            buckets: w.buckets,
            profiles: w.profiles,
            credentials: w.credentials,
            policy_parts: w.policy_parts,
        })
    }
}
