//! Keeps the clusters of past policies for as long as an Envoy may still use them.

use std::collections::BTreeMap;
use std::time::Instant;

use super::route::LONGEST_EXCHANGE;
use super::topology::{Topology, Upstream};

/// The current topology and what left it lately.
#[derive(Debug, Default)]
pub struct Retained {
    current: Topology,
    /// By the list's name.
    departed: BTreeMap<String, Departed>,
}

#[derive(Debug)]
struct Departed {
    positions: BTreeMap<String, Upstream>,
    order: Vec<String>,
    /// The first revision without it.
    revision: u64,
    /// Since when no connected Envoy enforces a policy that names it.
    unused_since: Option<Instant>,
}

impl Retained {
    /// Takes the topology of a new policy.
    pub fn replace(&mut self, next: Topology) {
        let previous = std::mem::replace(&mut self.current, next);
        for (name, order) in previous.lists {
            if !self.current.lists.contains_key(&name) {
                let positions =
                    order.iter().filter_map(|p| Some((p.clone(), previous.upstreams.get(p)?.clone()))).collect();
                let departed = Departed { positions, order, revision: self.current.revision, unused_since: None };
                self.departed.insert(name, departed);
            }
        }
        let current = &self.current;
        self.departed.retain(|name, _| !current.lists.contains_key(name));
    }

    /// Drops what no exchange can still be using. `enforced` is the least policy revision that any connected Envoy
    /// enforces; `None` when none is connected. True when something was dropped.
    pub fn sweep(&mut self, enforced: Option<u64>, now: Instant) -> bool {
        let before = self.departed.len();
        self.departed.retain(|_, departed| {
            if enforced.is_some_and(|e| e < departed.revision) {
                departed.unused_since = None;
                return true;
            }
            now.saturating_duration_since(*departed.unused_since.get_or_insert(now)) < LONGEST_EXCHANGE
        });
        self.departed.len() != before
    }

    /// The current topology together with what is kept. Where both have a position, the current endpoint counts.
    pub fn topology(&self) -> Topology {
        let mut all = self.current.clone();
        for (name, departed) in &self.departed {
            all.lists.insert(name.clone(), departed.order.clone());
            for (position, upstream) in &departed.positions {
                all.upstreams.entry(position.clone()).or_insert_with(|| upstream.clone());
            }
        }
        all
    }
}
