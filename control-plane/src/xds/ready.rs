//! Which policy revision an Envoy has the clusters for.
//!
//! A list may be used only when every live ADS stream of the node has ACKed the clusters and they had time to warm:
//! resolve names, receive trust bundles. A policy that names it is held back until then.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

/// What an Envoy needs between the ACK of a cluster and its first request.
pub const WARMING: Duration = Duration::from_secs(2);

/// Per node, the policy revision whose clusters all its streams have. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ClustersReady {
    nodes: Arc<Mutex<HashMap<String, Node>>>,
}

#[derive(Debug, Default)]
struct Node {
    next: u64,
    streams: HashMap<u64, Option<u64>>,
    ready: watch::Sender<Option<u64>>,
}

/// One live stream's entry; leaving removes it.
#[derive(Debug)]
pub(super) struct Entry {
    ready: ClustersReady,
    node: String,
    stream: u64,
}

impl ClustersReady {
    /// Follows one node. `None` while it has no ADS stream, or one that has not ACKed yet: hold new policies back, keep
    /// those it has.
    pub fn watch(&self, node: &str) -> watch::Receiver<Option<u64>> {
        self.lock().entry(node.to_owned()).or_default().ready.subscribe()
    }

    /// Whether the node has an ADS stream here.
    pub fn has_stream(&self, node: &str) -> bool {
        self.lock().get(node).is_some_and(|node| !node.streams.is_empty())
    }

    pub(super) fn enter(&self, node: &str) -> Entry {
        let mut nodes = self.lock();
        // Node ids are unique to a process, so old ones never come back.
        nodes.retain(|_, node| !node.streams.is_empty() || node.ready.receiver_count() > 0);
        let entry = nodes.entry(node.to_owned()).or_default();
        let stream = entry.next;
        entry.next += 1;
        entry.streams.insert(stream, None);
        entry.tell();
        Entry { ready: self.clone(), node: node.to_owned(), stream }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    fn tell(&self) {
        // `None` is less than any revision.
        let least = self.streams.values().min().copied().flatten();
        self.ready.send_if_modified(|ready| std::mem::replace(ready, least) != least);
    }
}

impl Entry {
    pub fn set(&self, revision: Option<u64>) {
        if let Some(node) = self.ready.lock().get_mut(&self.node) {
            node.streams.insert(self.stream, revision);
            node.tell();
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(node) = self.ready.lock().get_mut(&self.node) {
            node.streams.remove(&self.stream);
            node.tell();
        }
    }
}

/// When the clusters in use by one stream are warm. Pure.
#[derive(Debug, Default)]
pub(super) struct Warming {
    in_use: Option<(String, Instant)>,
}

impl Warming {
    /// `version` is in use as of an ACK at `now`.
    pub fn acked(&mut self, version: String, now: Instant) {
        if self.in_use.as_ref().is_none_or(|(known, _)| *known != version) {
            self.in_use = Some((version, now + WARMING));
        }
    }

    /// The Envoy asks for its first listeners, which it does when the first clusters are warm and not before.
    pub fn asked_for_listeners(&mut self, now: Instant) {
        if let Some((_, at)) = &mut self.in_use {
            *at = now;
        }
    }

    /// `version` was in use before this stream began.
    pub fn restated(&mut self, version: String, now: Instant) {
        self.in_use = Some((version, now));
    }

    /// Whether `version` is in use and warm; otherwise, when it will be.
    pub fn of(&self, version: &str, now: Instant) -> Warm {
        match &self.in_use {
            Some((known, at)) if known == version && *at <= now => Warm::Yes,
            Some((known, at)) if known == version => Warm::At(*at),
            _ => Warm::NotInUse,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Warm {
    Yes,
    At(Instant),
    NotInUse,
}
