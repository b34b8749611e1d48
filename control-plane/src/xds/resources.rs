//! All resources of one moment, with the versions by which Envoys name them.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::google::protobuf::Any;
use envoy_types::util::pack_any;
use prost::Message as _;
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

/// Collects resources and hashes what they say.
#[derive(Default)]
struct Builder {
    hash: Sha256,
    items: BTreeMap<String, Any>,
}

impl Builder {
    /// `stands_for` must have one encoding: protobuf maps of more than one entry have several.
    fn add(&mut self, name: &str, stands_for: &[u8], resource: Any) {
        self.hash.update((name.len() as u64).to_le_bytes());
        self.hash.update(name);
        self.hash.update((stands_for.len() as u64).to_le_bytes());
        self.hash.update(stands_for);
        self.items.insert(name.to_owned(), resource);
    }

    fn finish(self) -> Set {
        let digest = self.hash.finalize();
        Set { version: digest.iter().take(8).map(|b| format!("{b:02x}")).collect(), items: self.items }
    }
}

fn clusters(topology: &Topology) -> Set {
    let mut set = Builder::default();
    for (name, upstream) in &topology.upstreams {
        add_cluster(&mut set, cluster::position(name, upstream));
    }
    for (name, positions) in &topology.lists {
        add_cluster(&mut set, cluster::list(name, positions));
    }
    debug_assert!(!set.items.contains_key(names::EMPTY_CLUSTER), "names of lists and positions have their own prefixes");
    add_cluster(&mut set, cluster::empty());
    set.finish()
}

/// The host's metadata has two entries in one map; it says nothing that the name does not, so the version goes without.
fn add_cluster(set: &mut Builder, cluster: Cluster) {
    let mut plain = cluster.clone();
    let hosts = plain.load_assignment.iter_mut().flat_map(|a| &mut a.endpoints).flat_map(|e| &mut e.lb_endpoints);
    hosts.for_each(|host| host.metadata = None);
    set.add(&cluster.name.clone(), &plain.encode_to_vec(), pack_any(cluster));
}

fn secrets(topology: &Topology) -> Set {
    let mut set = Builder::default();
    for upstream in topology.upstreams.values() {
        let Some(bundle) = secret::bundle(&upstream.endpoint.trust) else { continue };
        if !set.items.contains_key(&bundle.name) {
            set.add(&bundle.name.clone(), &bundle.encode_to_vec(), pack_any(bundle));
        }
    }
    set.finish()
}

fn listeners(config: &ListenerConfig) -> Set {
    let mut set = Builder::default();
    let listener = pack_any(listener::listener(config));
    set.add(listener::NAME, &listener.value.clone(), listener);
    set.finish()
}
