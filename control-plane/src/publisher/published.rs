//! One version of everything that Envoys are told. Immutable.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use sluicegate_core::noun::Owner;
use sluicegate_core::proto::policy::Snapshot;
use sluicegate_core::state::feed::{ClockReading, View};
use sluicegate_core::state::record::KeyRecord;
use tokio::time::Instant;

use super::KeyIndex;
use crate::credentials::Secret;
use crate::store::{Clock, PolicyRow, Scope};

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
    /// By group; one without limits may be missing.
    pub scopes: Arc<HashMap<i32, Scoped>>,
    /// By id; those whose secret can be read.
    pub credentials: Arc<[Credential]>,
    /// Of all credentials there are.
    pub credential_ids: Arc<HashSet<u32>>,
}

/// What one group may hold.
#[derive(Clone, Debug)]
pub struct Scoped {
    pub scope: Scope,
    /// The policy, as far as it is the group's.
    pub policy: Option<Arc<PolicyParts>>,
}

/// The state as one group may see it.
#[derive(Clone, Copy, Debug)]
pub struct GroupView<'a> {
    published: &'a Published,
    scoped: Option<&'a Scoped>,
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

impl View for GroupView<'_> {
    fn era(&self) -> u64 {
        self.published.clock.era
    }

    fn revision(&self) -> u64 {
        self.published.clock.revision
    }

    fn bucket(&self, index: u32, count: u32) -> Vec<KeyRecord> {
        let mut records = self.published.keys.bucket(index, count);
        if let Some(Scoped { scope, .. }) = self.scoped {
            records.retain(|record| scope.has_org(record.org));
        }
        records
    }

    /// A change of the scope is one of every key: all that are in it are told anew.
    fn changed_since(&self, since: u64) -> Option<Vec<u32>> {
        if self.scoped.is_some_and(|scoped| since < scoped.scope.since) {
            return None;
        }
        self.published.keys.changed_since(since)
    }

    fn next_occupied(&self, mut from: u32, count: u32) -> Option<u32> {
        loop {
            let next = self.published.keys.next_occupied(from, count)?;
            if self.scoped.is_none_or(|scoped| scoped.scope.orgs.is_none()) || !self.bucket(next, count).is_empty() {
                return Some(next);
            }
            from = next.checked_add(1)?;
        }
    }

    fn profile(&self, id: u32) -> Option<Bytes> {
        self.published.profiles.get(&id).cloned()
    }

    fn blocked(&self) -> (u64, &[Owner]) {
        (self.published.clock.parts.blocks, &self.published.blocked)
    }
}

impl GroupView<'_> {
    pub fn policy(&self) -> Option<&Arc<PolicyParts>> {
        match self.scoped {
            Some(scoped) => scoped.policy.as_ref(),
            None => self.published.policy.as_ref(),
        }
    }

    /// Those whose secret can be read.
    pub fn credentials(&self) -> impl Iterator<Item = &Credential> {
        self.published.credentials.iter().filter(|credential| self.has_credential(credential.id))
    }

    /// Whether there is one, and the group may hold it.
    pub fn has_credential(&self, id: u32) -> bool {
        self.published.credential_ids.contains(&id) && self.scoped.is_none_or(|s| s.scope.has_credential(id))
    }

    /// Those that there are and that the group may not hold.
    pub fn withheld(&self) -> impl Iterator<Item = u32> {
        self.published.credential_ids.iter().copied().filter(|id| !self.has_credential(*id))
    }

    /// By which this group's Envoys are to order what they are told of a credential: one that was withdrawn because of the
    /// group's limits and is allowed again has not changed itself.
    pub fn revision_of(&self, credential: &Credential) -> u64 {
        credential.revision.max(self.since())
    }

    /// Of the last change that can take a credential away.
    pub fn credentials_revision(&self) -> u64 {
        self.published.clock.parts.credentials.max(self.since())
    }

    fn since(&self) -> u64 {
        self.scoped.map_or(0, |scoped| scoped.scope.since)
    }

    /// The orgs it serves; `None`: all.
    pub fn orgs(&self) -> Option<&BTreeSet<u32>> {
        self.scoped.and_then(|scoped| scoped.scope.orgs.as_ref())
    }
}

impl Published {
    /// As the Envoys of `group` may see it.
    pub fn of(&self, group: i32) -> GroupView<'_> {
        GroupView { published: self, scoped: self.scopes.get(&group) }
    }

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

impl Scoped {
    /// `None` for a scope that was never anything but everything.
    pub(super) fn new(era: u64, whole: Option<&(PolicyRow, Arc<PolicyParts>)>, scope: Scope) -> Option<Self> {
        let (row, parts) = match whole {
            _ if scope == (Scope { group: scope.group, ..Scope::default() }) => return None,
            None => return Some(Self { scope, policy: None }),
            Some(whole) => whole,
        };
        let Ok(snapshot) = Snapshot::decode(row.snapshot.as_slice()) else {
            return Some(Self { scope, policy: Some(Arc::clone(parts)) });
        };
        let revision = row.revision.max(scope.since);
        let row = PolicyRow { revision, snapshot: scope.cut(&snapshot).encode_to_vec() };
        Some(Self { scope, policy: Some(Arc::new(PolicyParts::cut(era, row))) })
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
