//! What an attempt should have cost by the policy that was in force.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message as _;
use sluicegate_core::noun::{Nano, Usage};
use sluicegate_core::policy::Policy;
use sluicegate_core::proto::dataplane::Record;
use sluicegate_core::proto::policy::Snapshot;
use tokio::time::Instant;

use crate::store::{Store, StoreError};

/// Policies kept compiled. Envoys price by the last few.
const MAX_POLICIES: usize = 32;
/// How long a revision that was not found is not looked for again.
const MISSING_FOR: Duration = Duration::from_secs(60);

/// What comes out of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checked {
    Agrees,
    Differs {
        expected: Option<Nano>,
    },
    /// The policy, or the backend in it, is not known here.
    Unknown,
}

/// Compiled policies by revision, least recently used ones dropped.
#[derive(Debug)]
pub(super) struct Prices {
    store: Store,
    policies: Mutex<HashMap<u64, Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    policy: Option<Arc<Policy>>,
    found: Instant,
    used: Instant,
}

impl Prices {
    pub(super) fn new(store: Store) -> Self {
        Self { store, policies: Mutex::default() }
    }

    pub(super) async fn check(&self, record: &Record) -> Checked {
        let Some(policy) = self.policy(record.policy_revision).await else { return Checked::Unknown };
        let Some(backend) = policy.backend(record.backend) else { return Checked::Unknown };
        let usage = record.usage.map(|u| Usage::from_wire(&u)).unwrap_or_default();
        let expected = backend.price.as_ref().and_then(|price| price.cost(&usage));
        if expected == record.cost_nano.map(Nano) { Checked::Agrees } else { Checked::Differs { expected } }
    }

    async fn policy(&self, revision: u64) -> Option<Arc<Policy>> {
        if let Some(policy) = self.cached(revision) {
            return policy;
        }
        match self.load(revision).await {
            Ok(policy) => {
                self.keep(revision, policy.clone());
                policy
            }
            Err(error) => {
                tracing::debug!(revision, %error, "cannot look a policy up");
                None
            }
        }
    }

    async fn load(&self, revision: u64) -> Result<Option<Arc<Policy>>, StoreError> {
        let Some(bytes) = self.store.policy_at(revision).await? else { return Ok(None) };
        let snapshot = Snapshot::decode(bytes.as_slice()).ok();
        Ok(snapshot.and_then(|s| Policy::compile(&s, revision).ok()).map(Arc::new))
    }

    /// Outer `None`: look it up.
    fn cached(&self, revision: u64) -> Option<Option<Arc<Policy>>> {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = policies.get_mut(&revision)?;
        if entry.policy.is_none() && entry.found.elapsed() > MISSING_FOR {
            return None;
        }
        entry.used = Instant::now();
        Some(entry.policy.clone())
    }

    fn keep(&self, revision: u64, policy: Option<Arc<Policy>>) {
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        policies.insert(revision, Entry { policy, found: now, used: now });
        if policies.len() > MAX_POLICIES {
            let oldest = policies.iter().min_by_key(|(_, entry)| entry.used).map(|(revision, _)| *revision);
            oldest.and_then(|revision| policies.remove(&revision));
        }
    }
}
