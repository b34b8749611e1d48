//! What a request asks shared data: whose key is this, and what may it do.

use std::collections::HashMap;
use std::rc::Rc;

use super::blocked::Blocked;
use super::bucket::Bucket;
use super::head::Head;
use super::profile::{CompiledProfile, Entry};
use super::record::{self, KeyRecord};
use super::rule::{self, Rule};
use super::store::{SharedData, StoreFault};
use super::{Boot, Times};
use crate::noun::{Owner, OwnerKind};

/// Only with a mark younger than this is "unknown" said; otherwise it is "cannot tell".
const CONFIRMED_NS: u64 = 10_000_000_000;
/// Profiles a VM keeps compiled.
const MAX_PROFILES: usize = 4_096;
/// A blocked list that moves on under each of so many reads is not waited for.
const RELOADS: usize = 4;

/// What is known of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Lookup {
    /// It exists. `expired` by control-plane time.
    Known { record: KeyRecord, profile: Rc<CompiledProfile>, expired: bool },
    /// It exists, and an owner of it is blocked.
    Blocked { record: KeyRecord, owner: OwnerKind },
    /// It does not exist, on the word of a complete and current state.
    Unknown,
    /// The state is not complete or not current, and does not know it.
    NotReady,
    /// It existed when the control plane was last heard of, which is too long ago.
    StateTooOld,
}

/// One VM's reader: caches what changes rarely.
#[derive(Debug, Default)]
pub struct Reader {
    blocked: Blocked,
    /// With the eras the id is good for.
    profiles: HashMap<u32, ((u64, u64), Rc<CompiledProfile>)>,
    sizes: Option<super::boot::Sizes>,
}

impl Reader {
    /// Reads head and one bucket; with warm caches nothing else. `hash` is the key's SHA-256, `max_staleness_ns` how long
    /// known keys are served without a mark.
    ///
    /// # Errors
    /// When the store answers what it should not: to be treated as not ready.
    pub fn lookup<S: SharedData>(
        &mut self,
        store: &S,
        hash: &[u8; 32],
        now: Times,
        max_staleness_ns: u64,
    ) -> Result<Lookup, StoreFault> {
        let Some(sizes) = self.sizes(store)? else { return Ok(Lookup::NotReady) };
        let [prefix @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = hash;
        let index = record::bucket_of(prefix, sizes.buckets);
        let Some((head, bucket)) = self.head_and_bucket(store, index)? else { return Ok(Lookup::NotReady) };
        if head.confirmed == Times::default() {
            // Before the boot's first mark there is no clock to judge an expiry by.
            return Ok(Lookup::NotReady);
        }
        let found =
            if bucket.stamp < head.floor && rule::on(Rule::S7) { None } else { record::find(bucket.records(), prefix) };
        let age = now.since(head.confirmed);
        let Some(record) = found else {
            let can_tell = (head.complete && age < CONFIRMED_NS) || !rule::on(Rule::S8);
            return Ok(if can_tell { Lookup::Unknown } else { Lookup::NotReady });
        };
        if age >= max_staleness_ns {
            return Ok(Lookup::StateTooOld);
        }
        if let Some(owner) = self.blocking(&record, &head) {
            return Ok(Lookup::Blocked { record, owner });
        }
        let Some(profile) = self.profile(store, record.profile, bucket.stamp.era, sizes.profiles)? else {
            return Ok(Lookup::NotReady);
        };
        let now_s = head.control_plane_time(now.mono) / 1_000_000_000;
        let expired = record.expires_unix != 0 && u64::try_from(now_s).is_ok_and(|now| now >= record.expires_unix);
        Ok(Lookup::Known { record, profile, expired })
    }

    /// Head and a bucket, and in the cache a blocked list as new as both. Nothing is accepted before the first list.
    fn head_and_bucket<S: SharedData>(&mut self, store: &S, index: u32) -> Result<Option<(Head, Bucket)>, StoreFault> {
        for _ in 0..RELOADS {
            let head = Head::read(store)?;
            if head.blocked == super::Stamp::ZERO {
                return Ok(None);
            }
            if head.blocked > self.blocked.stamp {
                self.blocked = Blocked::read(store)?;
                continue;
            }
            let bucket = Bucket::read(store, index)?;
            // What is ahead of head may have come since, and before it a list.
            let ahead = bucket.stamp > head.keys && rule::on(Rule::S8List);
            if !ahead || Head::read(store)?.blocked <= self.blocked.stamp {
                return Ok(Some((head, bucket)));
            }
        }
        Ok(None)
    }

    fn blocking(&self, record: &KeyRecord, head: &Head) -> Option<OwnerKind> {
        [
            (OwnerKind::Org, record.org),
            (OwnerKind::Team, record.team),
            (OwnerKind::User, record.user),
            (OwnerKind::Key, record.key),
        ]
        .into_iter()
        .find_map(|(kind, id)| self.blocked.blocks(Owner { kind, id }, head.keys).then_some(kind))
    }

    fn profile<S: SharedData>(
        &mut self,
        store: &S,
        id: u32,
        era: u64,
        count: u32,
    ) -> Result<Option<Rc<CompiledProfile>>, StoreFault> {
        if let Some((eras, profile)) = self.profiles.get(&id)
            && (eras.0..=eras.1).contains(&era)
        {
            return Ok(Some(Rc::clone(profile)));
        }
        let Some(entry) = Entry::read(store, id, count)?.filter(|e| e.is_of(era)) else { return Ok(None) };
        let Some(profile) = CompiledProfile::compile(&entry.body).map(Rc::new) else { return Ok(None) };
        if self.profiles.len() >= MAX_PROFILES {
            self.profiles.clear();
        }
        self.profiles.insert(id, (entry.eras, Rc::clone(&profile)));
        Ok(Some(profile))
    }

    /// Fixed once for the life of the process.
    fn sizes<S: SharedData>(&mut self, store: &S) -> Result<Option<super::boot::Sizes>, StoreFault> {
        if self.sizes.is_none() {
            self.sizes = Boot::read(store)?.and_then(|boot| boot.sizes);
        }
        Ok(self.sizes)
    }
}
