//! A database for tests: what the control plane's index is built from, one revision per change.

use std::collections::{BTreeMap, BTreeSet};

use ::bytes::Bytes;

use super::feed::{ClockReading, View};
use super::record::{Flags, KeyRecord, bucket_of, prefix_of, prefixes_of};
use crate::noun::Owner;

/// The present content. A clone is a snapshot, and so is what a replica that lags still has.
#[derive(Clone, Debug, Default)]
pub struct Database {
    pub era: u64,
    pub revision: u64,
    pub keys: BTreeMap<[u8; 16], KeyRecord>,
    pub profiles: BTreeMap<u32, Bytes>,
    pub blocked: Vec<Owner>,
    blocked_at: u64,
    log: Vec<(u64, u32)>,
    /// Changes up to here are in the log no more.
    cut: u64,
}

/// A key whose hash begins with `prefix`; its owners and profile are told from `n`.
pub fn key(prefix: u32, n: u32) -> KeyRecord {
    let mut hash = [0; 16];
    hash[..4].copy_from_slice(&prefix.to_be_bytes());
    hash[12..].copy_from_slice(&n.to_be_bytes());
    KeyRecord { hash, org: 1 + n % 2, team: 1, user: 1, key: 1 + n, profile: 1, expires_unix: 0, flags: 0 }
}

impl Database {
    pub fn new(era: u64) -> Self {
        Self { era, profiles: BTreeMap::from([(1, Bytes::from_static(b"\x08\x01"))]), ..Self::default() }
    }

    pub fn put(&mut self, record: KeyRecord) {
        self.revision += 1;
        self.keys.insert(record.hash, record);
        self.log.push((self.revision, prefix_of(&record.hash)));
    }

    pub fn disable(&mut self, hash: &[u8; 16]) {
        let record = self.keys[hash];
        self.put(KeyRecord { flags: Flags::DISABLED, ..record });
    }

    pub fn remove(&mut self, hash: &[u8; 16]) {
        self.revision += 1;
        self.keys.remove(hash);
        self.log.push((self.revision, prefix_of(hash)));
    }

    pub fn block(&mut self, owners: impl IntoIterator<Item = Owner>) {
        self.revision += 1;
        self.blocked = owners.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        self.blocked_at = self.revision;
    }

    /// Forgets what changed so far.
    pub fn cut_log(&mut self) {
        self.cut = self.revision;
        self.log.clear();
    }

    /// Of an older log, this one lacks what it lacked.
    pub fn keep_cut_of(&mut self, older: &Self) {
        self.cut = self.cut.max(older.cut);
        self.log.retain(|(revision, _)| *revision > self.cut);
    }

    /// Comes back as it was at `backup`, in a new era.
    pub fn restore(&mut self, backup: &Self) {
        *self = Self { era: self.era + 1, ..backup.clone() };
    }

    pub fn reading(&self, now_unix_ns: i64) -> ClockReading {
        ClockReading { era: self.era, revision: self.revision, now_unix_ns }
    }
}

/// The first or last hash with a prefix.
fn edge(prefix: u32, rest: u8) -> [u8; 16] {
    let mut hash = [rest; 16];
    hash[..4].copy_from_slice(&prefix.to_be_bytes());
    hash
}

impl View for Database {
    fn era(&self) -> u64 {
        self.era
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn bucket(&self, index: u32, count: u32) -> Vec<KeyRecord> {
        let prefixes = prefixes_of(index, count);
        let (first, last) = (edge(*prefixes.start(), 0), edge(*prefixes.end(), 0xff));
        self.keys.range(first..=last).map(|(_, record)| *record).collect()
    }

    fn changed_since(&self, since: u64) -> Option<Vec<u32>> {
        let later = self.log.iter().filter(|(revision, _)| *revision > since);
        (since >= self.cut).then(|| later.map(|(_, prefix)| *prefix).collect())
    }

    fn next_occupied(&self, from: u32, count: u32) -> Option<u32> {
        if from >= count {
            return None;
        }
        let first = edge(*prefixes_of(from, count).start(), 0);
        self.keys.range(first..).next().map(|(hash, _)| bucket_of(hash, count))
    }

    fn profile(&self, id: u32) -> Option<Bytes> {
        self.profiles.get(&id).cloned()
    }

    fn blocked(&self) -> (u64, &[Owner]) {
        (self.blocked_at, &self.blocked)
    }
}
