//! Follows the store's policy and makes xDS topologies of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use sluicegate_core::policy::Position;
use tokio::sync::watch;

use crate::publisher::Published;
use crate::store::{self, Cluster, EnvoyRow, ProviderEndpoint, Reachable, Store, StoreError, TokenIssuer, TokenKeys};
use crate::xds::{Endpoint, Issuer, Keys, Publisher, Topology, Trust, Upstream};

/// Bursts of commits are looked at together.
const SETTLE: Duration = Duration::from_millis(50);
const SWEEP: Duration = Duration::from_secs(60);
/// An Envoy that has said nothing for this long is not connected; it says something every 5 s.
const CONNECTED: chrono::TimeDelta = chrono::TimeDelta::seconds(60);
const MOST_ENVOYS: u32 = 10_000;

/// Publishes each new topology, and drops old clusters when nobody needs them. The caller drops it to end it.
pub async fn follow(store: Store, mut published: watch::Receiver<Option<Arc<Published>>>, xds: Arc<Publisher>) {
    let mut seen = None;
    let mut last = None;
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            _ = sweep.tick() => match enforced(&store).await {
                Ok(enforced) => xds.sweep(enforced),
                Err(error) => tracing::warn!(%error, "old clusters stay for now"),
            },
            changed = published.changed() => {
                let clock = published.borrow_and_update().as_ref().map(|p| (p.clock.era, p.clock.revision));
                if changed.is_err() {
                    return;
                }
                if clock == seen {
                    continue;
                }
                match store.reachable().await {
                    Ok(reachable) => {
                        seen = clock;
                        let next = reachable.map(|reachable| topology(&reachable)).unwrap_or_default();
                        if last.as_ref() != Some(&next) {
                            xds.publish(next.clone());
                            last = Some(next);
                        }
                    }
                    // The publisher wakes us again within a second of the database's return.
                    Err(error) => tracing::warn!(%error, "cannot read the clusters"),
                }
                tokio::time::sleep(SETTLE).await;
            }
        }
    }
}

/// The least policy revision that a connected Envoy enforces; `None` when none is connected.
async fn enforced(store: &Store) -> Result<Option<u64>, StoreError> {
    let connected = |envoy: &EnvoyRow| Utc::now() - envoy.last_seen < CONNECTED;
    let envoys = store.envoys(MOST_ENVOYS).await?;
    Ok(envoys.iter().filter(|envoy| connected(envoy)).map(|envoy| envoy.policy_revision.cast_unsigned()).min())
}

fn topology(reachable: &Reachable) -> Topology {
    let position = |c: &Cluster| {
        let ProviderEndpoint { provider, endpoint: at, ca, .. } = &c.endpoint;
        ((c.backend, c.credential), endpoint(at, ca.as_deref(), &provider.to_string()))
    };
    let endpoints: BTreeMap<_, _> = reachable.clusters.iter().map(position).collect();
    let issuers = reachable.issuers.iter().map(issuer).collect();
    let mut topology = Topology { revision: reachable.changed, issuers, ..Default::default() };
    // A group that may not use every credential has lists of its own.
    let limited = reachable.scopes.iter().filter(|scope| scope.limits_policy());
    let scoped: Vec<_> = limited.map(|scope| scope.cut(&reachable.snapshot)).collect();
    let all = std::iter::once(&reachable.snapshot).chain(&scoped);
    for list in all.flat_map(|snapshot| &snapshot.models).flat_map(|model| &model.lists) {
        let upstream = |p: &sluicegate_core::proto::policy::Position| {
            let endpoint = endpoints.get(&(p.backend, p.credential))?.clone();
            Some(Upstream { position: Position { backend: p.backend, credential: p.credential }, endpoint })
        };
        // A policy whose backends have no provider is refused before it is stored.
        if let Some(list) = list.positions.iter().map(upstream).collect::<Option<Vec<_>>>() {
            topology.add_list(&list);
        }
    }
    topology
}

/// With the name of its cluster.
fn issuer(issuer: &TokenIssuer) -> (String, Issuer) {
    let name = format!("issuer-{}", issuer.id);
    let keys = match &issuer.keys {
        TokenKeys::Inline(jwks) => Keys::Inline(jwks.clone()),
        TokenKeys::Fetched { uri, endpoint: at, ca } => {
            Keys::Fetched { uri: uri.clone(), endpoint: endpoint(at, ca.as_deref(), &name) }
        }
    };
    let TokenIssuer { id, iss, audiences, .. } = issuer.clone();
    (format!("sluicegate-{name}"), Issuer { id, iss, audiences, keys })
}

/// `owner` is whose authority `ca` is.
fn endpoint(at: &store::Endpoint, ca: Option<&str>, owner: &str) -> Endpoint {
    let trust = match (at.tls, ca) {
        (false, _) => Trust::Plaintext,
        (true, None) => Trust::PublicRoots,
        (true, Some(pem)) => Trust::Ca { owner: owner.to_owned(), pem: pem.to_owned() },
    };
    Endpoint { host: at.host.clone(), port: at.port, trust }
}
