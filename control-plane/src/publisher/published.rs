//! One version of everything that Envoys are told. Immutable.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use sluicegate_core::noun::Owner;
use sluicegate_core::state::feed::{ClockReading, View};
use sluicegate_core::state::record::KeyRecord;
use tokio::time::Instant;

use super::KeyIndex;
use crate::credentials::Secret;
use crate::store::{Clock, PolicyRow};

/// Part of a policy in one message; messages stay under 64 KB.
pub const MAX_PART_BYTES: usize = 60 << 10;

/// The state as of one reading of the database. All parts are shared with the versions before and after it.
#[derive(Clone, Debug)]
pub struct Published {
    /// Era, revision and time, from one statement; the parts are exactly as of it.
    pub clock: Clock,
    /// When the clock was read, on this machine's own clock.
    pub read_at: Instant,
    /// When the reading was begun: for a commit, when it was heard of.
    pub woken_at: Instant,
    pub keys: KeyIndex,
    /// Encoded `ProfileBody`s; every one that `keys` names, and for a while some that it no longer does.
    pub profiles: Arc<HashMap<u32, Bytes>>,
    /// Sorted.
    pub blocked: Arc<[Owner]>,
    pub policy: Option<Arc<PolicyParts>>,
    /// By id; those whose secret can be read.
    pub credentials: Arc<[Credential]>,
    /// Of all credentials there are.
    pub credential_ids: Arc<HashSet<u32>>,
}

/// An encoded `Snapshot`, cut for the wire.
#[derive(Debug)]
pub struct PolicyParts {
    pub era: u64,
    pub revision: u64,
    /// At least one.
    pub parts: Vec<Bytes>,
}

/// A provider credential.
#[derive(Clone, Debug)]
pub struct Credential {
    pub id: u32,
    pub revision: u64,
    pub secret: Secret,
}

impl View for Published {
    fn era(&self) -> u64 {
        self.clock.era
    }

    fn revision(&self) -> u64 {
        self.clock.revision
    }

    fn bucket(&self, index: u32, count: u32) -> Vec<KeyRecord> {
        self.keys.bucket(index, count)
    }

    fn changed_since(&self, since: u64) -> Option<Vec<u32>> {
        self.keys.changed_since(since)
    }

    fn next_occupied(&self, from: u32, count: u32) -> Option<u32> {
        self.keys.next_occupied(from, count)
    }

    fn profile(&self, id: u32) -> Option<Bytes> {
        self.profiles.get(&id).cloned()
    }

    fn blocked(&self) -> (u64, &[Owner]) {
        (self.clock.parts.blocks, &self.blocked)
    }
}

impl Published {
    /// Counter and time as they were read.
    pub fn reading(&self) -> ClockReading {
        let Clock { era, revision, now_unix_ns, .. } = self.clock;
        ClockReading { era, revision, now_unix_ns }
    }

    /// The database's time now, as this machine's monotonic clock carries it on from the last reading.
    pub fn now_unix_ns(&self) -> i64 {
        let elapsed = i64::try_from(self.read_at.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.clock.now_unix_ns.saturating_add(elapsed)
    }
}

impl PolicyParts {
    pub(super) fn cut(era: u64, row: PolicyRow) -> Self {
        let whole = Bytes::from(row.snapshot);
        let mut parts: Vec<Bytes> = (0..whole.len())
            .step_by(MAX_PART_BYTES)
            .map(|at| whole.slice(at..whole.len().min(at + MAX_PART_BYTES)))
            .collect();
        if parts.is_empty() {
            parts.push(Bytes::new());
        }
        Self { era, revision: row.revision, parts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_put_together_are_the_whole() {
        for length in [0, 1, MAX_PART_BYTES, MAX_PART_BYTES + 1, 3 * MAX_PART_BYTES] {
            let snapshot: Vec<u8> = (0..length).map(|i| i as u8).collect();
            let cut = PolicyParts::cut(1, PolicyRow { revision: 2, snapshot: snapshot.clone() });
            assert_eq!(cut.parts.len(), length.div_ceil(MAX_PART_BYTES).max(1));
            assert_eq!(cut.parts.concat(), snapshot);
        }
    }
}
