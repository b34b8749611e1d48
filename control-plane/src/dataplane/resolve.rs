//! Who the holder of a token is: asked by Envoys that have no record of it.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::exchange::token::Presented;
use sluicegate_core::proto::dataplane::{Bucket, Found, Profile, Resolve, Resolved, resolved::Outcome};
use sluicegate_core::state::feed::View as _;
use sluicegate_core::state::record::{KeyRecord, bucket_of};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::NodeIdentity;
use crate::credentials::Keyring;
use crate::publisher::{MAX_BUCKETS, Published, Publisher};
use crate::store::{ELSEWHERE, Resolution, Store};

/// Answers that take longer find nobody waiting: a request gives up after 4 s.
const PATIENCE: Duration = Duration::from_secs(4);
/// New identities are writes, and each takes its turn at the counter.
const AT_ONCE: usize = 4;

/// Looks questions up. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Resolver {
    store: Store,
    publisher: Publisher,
    keyring: Arc<Keyring>,
    turns: Arc<Semaphore>,
}

impl Resolver {
    pub(super) fn new(store: Store, publisher: Publisher, keyring: Arc<Keyring>) -> Self {
        Self { store, publisher, keyring, turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Always answers: who asked has requests waiting.
    pub(super) fn resolve(
        &self,
        node: &Arc<NodeIdentity>,
        question: Resolve,
    ) -> impl Future<Output = Resolved> + Send + use<> {
        let (this, node) = (self.clone(), Arc::clone(node));
        async move {
            let hash = question.hash.clone();
            let answer = timeout(PATIENCE, this.answer(&node, question)).await;
            let outcome = answer.unwrap_or_else(|_| Outcome::Unavailable("the database is slow or away".to_owned()));
            metrics::counter!("sluicegate_identities_resolved_total", "outcome" => name(&outcome)).increment(1);
            Resolved { hash, outcome: Some(outcome) }
        }
    }

    async fn answer(&self, node: &NodeIdentity, question: Resolve) -> Outcome {
        let buckets = question.buckets;
        if !buckets.is_power_of_two() || buckets > MAX_BUCKETS {
            return Outcome::Unavailable("this Envoy has no state yet".to_owned());
        }
        let Some(who) = Presented::from_wire(question) else {
            return Outcome::Unavailable("the question contradicts itself".to_owned());
        };
        let Ok(_turn) = self.turns.acquire().await else {
            return Outcome::Unavailable("this control plane is stopping".to_owned());
        };
        let view = self.publisher.latest();
        let orgs = view.as_ref().and_then(|view| view.of(node.group_id).orgs().cloned());
        match self.store.resolve(&self.keyring, &who, orgs.as_ref()).await {
            Ok(Resolution::Known { revision }) => self.found(node, buckets, &who, revision).await,
            Ok(Resolution::Refused(reason)) => Outcome::Refused(reason),
            Ok(Resolution::OtherRules) => Outcome::Unavailable("the issuer's rules are just changing".to_owned()),
            Err(error) => {
                tracing::warn!(%error, token = node.token_name, "cannot resolve an identity");
                Outcome::Unavailable("the database is away".to_owned())
            }
        }
    }

    /// The whole bucket, from a view that has the identity.
    async fn found(&self, node: &NodeIdentity, buckets: u32, who: &Presented, revision: u64) -> Outcome {
        let mut published = self.publisher.subscribe();
        let has_it = |p: &Option<Arc<Published>>| p.as_ref().is_some_and(|p| p.clock.revision >= revision);
        let Ok(view) = published.wait_for(has_it).await.map(|view| view.clone()) else {
            return Outcome::Unavailable("this control plane is stopping".to_owned());
        };
        let Some(view) = view else { return Outcome::Unavailable("nothing was read yet".to_owned()) };
        let [prefix @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = &who.hash.0;
        let index = bucket_of(prefix, buckets);
        let group = view.of(node.group_id);
        let records = group.bucket(index, buckets);
        if !records.iter().any(|record| record.hash == *prefix) {
            return Outcome::Refused(ELSEWHERE.to_owned());
        }
        let ids: std::collections::BTreeSet<u32> = records.iter().map(|record| record.profile).collect();
        let profile = |id| group.profile(id).map(|body| Profile { id, body });
        let records: Vec<u8> = records.iter().flat_map(KeyRecord::encode).collect();
        Outcome::Found(Found {
            era: group.era(),
            profiles: ids.into_iter().filter_map(profile).collect(),
            bucket: Some(Bucket { index, revision: group.revision(), records: records.into() }),
        })
    }
}

fn name(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Found(_) => "found",
        Outcome::Refused(_) => "refused",
        Outcome::Unavailable(_) => "unavailable",
    }
}
