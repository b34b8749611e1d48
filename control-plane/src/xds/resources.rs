//! All resources of one moment, with the versions by which Envoys name them.

use std::collections::BTreeMap;

use envoy_types::pb::google::protobuf::Any;
use envoy_types::util::pack_any;
use sha2::{Digest, Sha256};
use sluicegate_core::policy::names;

use super::listener::{self, ListenerConfig};
use super::machine::Kind;
use super::topology::Topology;
use super::{cluster, secret};

/// What is sent to every Envoy. Immutable; a change makes a new one.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Of the policy whose lists all have their clusters in here.
    pub revision: u64,
    clusters: Set,
    secrets: Set,
    listeners: Set,
}

/// The resources of one type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Set {
    /// A hash of the content: the same after a restart, so that a reconnecting Envoy is not sent what it has.
    pub version: String,
    pub items: BTreeMap<String, Any>,
}

impl Resources {
    pub fn new(topology: &Topology, listener: &ListenerConfig) -> Self {
        Self {
            revision: topology.revision,
            clusters: clusters(topology),
            secrets: secrets(topology),
            listeners: listeners(listener),
        }
    }

    /// The same listener with the clusters of another topology.
    pub fn with(&self, topology: &Topology) -> Self {
        Self {
            revision: topology.revision,
            clusters: clusters(topology),
            secrets: secrets(topology),
            listeners: self.listeners.clone(),
        }
    }

    pub(super) fn of(&self, kind: Kind) -> &Set {
        match kind {
            Kind::Cluster => &self.clusters,
            Kind::Secret => &self.secrets,
            Kind::Listener => &self.listeners,
        }
    }
}

/// Collects resources and hashes them. No resource has a protobuf map of more than one entry, so each has one encoding.
#[derive(Default)]
struct Builder {
    hash: Sha256,
    items: BTreeMap<String, Any>,
}

impl Builder {
    fn add<T: prost::Name>(&mut self, name: String, resource: T) {
        let resource = pack_any(resource);
        for part in [name.as_bytes(), resource.value.as_slice()] {
            self.hash.update((part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
        self.items.insert(name, resource);
    }

    fn finish(self) -> Set {
        let digest = self.hash.finalize();
        Set { version: hex::encode(digest.get(..8).unwrap_or(&digest)), items: self.items }
    }
}

fn clusters(topology: &Topology) -> Set {
    let mut set = Builder::default();
    for (name, upstream) in &topology.upstreams {
        set.add(name.clone(), cluster::position(name, upstream));
    }
    for (name, positions) in &topology.lists {
        set.add(name.clone(), cluster::list(name, positions));
    }
    set.add(names::EMPTY_CLUSTER.to_owned(), cluster::empty());
    set.finish()
}

fn secrets(topology: &Topology) -> Set {
    let bundles = topology.upstreams.values().filter_map(|u| secret::bundle(&u.endpoint.trust));
    let bundles: BTreeMap<_, _> = bundles.map(|bundle| (bundle.name.clone(), bundle)).collect();
    let mut set = Builder::default();
    for (name, bundle) in bundles {
        set.add(name, bundle);
    }
    set.finish()
}

fn listeners(config: &ListenerConfig) -> Set {
    let mut set = Builder::default();
    set.add(listener::NAME.to_owned(), listener::listener(config));
    set.finish()
}
