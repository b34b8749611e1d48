//! Which policy a stream is offered, and when.
//!
//! A policy names lists, each of which is a cluster of Envoy's. Envoy hears of clusters by xDS, on another stream: a policy
//! that came first would send requests to clusters that do not exist yet. So a stream is offered a policy only when its
//! node's Envoys have the clusters. Envoys whose clusters are somebody else's have no xDS stream of ours and are not waited
//! for, after a while in which an xDS stream could have come back.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::proto::dataplane::{PolicyPart, SyncDown, sync_down::M};
use tokio::sync::watch;
use tokio::time::Instant;

use super::ClustersReady;
use crate::publisher::PolicyParts;

/// What a boot without any policy waits for an xDS stream: it serves nothing, so there is nothing to break.
const FIRST_GRACE: Duration = Duration::from_secs(2);
/// What a boot that has a policy waits: Envoy's own backoff between two xDS streams is up to 30 s.
const LATER_GRACE: Duration = Duration::from_secs(35);

/// One stream's policies.
pub(super) struct Offer {
    clusters: Arc<dyn ClustersReady>,
    node: Arc<str>,
    pub(super) ready: watch::Receiver<Option<u64>>,
    /// When an xDS stream of the node was last seen; at first, when this stream began.
    seen: Instant,
    grace: Duration,
    /// (era, revision) of what the Envoy has or is being sent.
    offered: (u64, u64),
    sending: Option<(Arc<PolicyParts>, usize)>,
}

impl Offer {
    /// `has` is the (era, revision) of the policy that the Envoy said it works by.
    pub(super) fn new(clusters: Arc<dyn ClustersReady>, node: Arc<str>, has: (u64, u64), now: Instant) -> Self {
        let ready = clusters.watch(&node);
        let grace = if has.1 == 0 { FIRST_GRACE } else { LATER_GRACE };
        Self { clusters, node, ready, seen: now, grace, offered: has, sending: None }
    }

    /// The next part to send of the newest policy, if the Envoy may have it now.
    pub(super) fn next(&mut self, newest: Option<&Arc<PolicyParts>>, now: Instant) -> Option<SyncDown> {
        if let Some(newest) = newest.filter(|p| (p.era, p.revision) != self.offered)
            && self.may_have(newest.revision, now)
        {
            // Parts of an older one that were not sent yet are of no use to anybody.
            self.offered = (newest.era, newest.revision);
            self.sending = Some((Arc::clone(newest), 0));
        }
        let (policy, index) = self.sending.as_mut()?;
        let part = PolicyPart {
            era: policy.era,
            revision: policy.revision,
            index: u32::try_from(*index).ok()?,
            count: u32::try_from(policy.parts.len()).ok()?,
            part: policy.parts.get(*index)?.clone(),
        };
        *index += 1;
        if *index == policy.parts.len() {
            self.sending = None;
        }
        Some(SyncDown { m: Some(M::Policy(part)) })
    }

    fn may_have(&mut self, revision: u64, now: Instant) -> bool {
        if self.clusters.has_stream(&self.node) {
            self.seen = now;
            return self.ready.borrow_and_update().is_some_and(|ready| ready >= revision);
        }
        now.duration_since(self.seen) >= self.grace
    }

    /// When to ask again though nothing happened.
    pub(super) fn ask_again_at(&self) -> Instant {
        self.seen + self.grace
    }

    pub(super) fn is_unoffered(&self, newest: Option<&Arc<PolicyParts>>) -> bool {
        newest.is_some_and(|p| (p.era, p.revision) != self.offered)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;

    use super::*;

    struct Xds {
        ready: watch::Sender<Option<u64>>,
        stream: Mutex<bool>,
    }

    impl Xds {
        fn new(stream: bool) -> Arc<Self> {
            Arc::new(Self { ready: watch::Sender::new(None), stream: stream.into() })
        }
    }

    impl ClustersReady for Xds {
        fn watch(&self, _: &str) -> watch::Receiver<Option<u64>> {
            self.ready.subscribe()
        }

        fn has_stream(&self, _: &str) -> bool {
            *self.stream.lock().unwrap()
        }
    }

    fn policy(revision: u64, parts: usize) -> Arc<PolicyParts> {
        Arc::new(PolicyParts { era: 1, revision, parts: vec![Bytes::new(); parts] })
    }

    /// All that it sends at `now`.
    fn sent(offer: &mut Offer, policy: &Arc<PolicyParts>, now: Instant) -> Vec<(u64, u32, u32)> {
        std::iter::from_fn(|| match offer.next(Some(policy), now)?.m? {
            M::Policy(part) => Some((part.revision, part.index, part.count)),
            other => panic!("{other:?}"),
        })
        .collect()
    }

    #[test]
    fn a_policy_waits_for_its_clusters() {
        let (xds, now) = (Xds::new(true), Instant::now());
        let mut offer = Offer::new(xds.clone(), "n".into(), (0, 0), now);
        xds.ready.send_replace(Some(4));
        let later = now + Duration::from_secs(100);
        assert_eq!(sent(&mut offer, &policy(5, 2), later), [], "however long it takes");
        xds.ready.send_replace(Some(5));
        assert_eq!(sent(&mut offer, &policy(5, 2), later), [(5, 0, 2), (5, 1, 2)]);
        assert_eq!(sent(&mut offer, &policy(5, 2), later), [], "once");
    }

    #[test]
    fn who_has_no_xds_stream_is_not_waited_for_for_long() {
        let now = Instant::now();
        let mut first = Offer::new(Xds::new(false), "n".into(), (0, 0), now);
        let mut later = Offer::new(Xds::new(false), "n".into(), (1, 4), now);
        assert_eq!(sent(&mut first, &policy(5, 1), now), []);
        assert_eq!(sent(&mut first, &policy(5, 1), now + FIRST_GRACE), [(5, 0, 1)]);
        assert_eq!(sent(&mut later, &policy(5, 1), now + FIRST_GRACE), []);
        assert_eq!(sent(&mut later, &policy(5, 1), now + LATER_GRACE), [(5, 0, 1)]);
    }

    #[test]
    fn a_lost_xds_stream_may_come_back_first() {
        let (xds, now) = (Xds::new(true), Instant::now());
        xds.ready.send_replace(Some(4));
        let mut offer = Offer::new(xds.clone(), "n".into(), (1, 3), now);
        assert_eq!(sent(&mut offer, &policy(4, 1), now), [(4, 0, 1)]);
        let later = now + Duration::from_secs(100);
        assert_eq!(sent(&mut offer, &policy(5, 1), later), []);
        *xds.stream.lock().unwrap() = false;
        assert_eq!(sent(&mut offer, &policy(5, 1), later), []);
        assert_eq!(sent(&mut offer, &policy(5, 1), later + LATER_GRACE), [(5, 0, 1)]);
    }

    #[test]
    fn a_newer_policy_replaces_the_rest_of_an_older() {
        let (xds, now) = (Xds::new(true), Instant::now());
        xds.ready.send_replace(Some(9));
        let mut offer = Offer::new(xds, "n".into(), (1, 5), now);
        assert_eq!(sent(&mut offer, &policy(5, 1), now), [], "it has that");
        assert!(offer.next(Some(&policy(6, 3)), now).is_some());
        assert_eq!(sent(&mut offer, &policy(7, 2), now), [(7, 0, 2), (7, 1, 2)]);
    }
}
