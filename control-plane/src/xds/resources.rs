//! All resources of one moment, with the versions by which Envoys name them.

use std::collections::BTreeMap;

use envoy_types::pb::google::protobuf::Any;
use envoy_types::util::pack_any;
use sha2::{Digest, Sha256};
use sluicegate_core::policy::names;

use super::listener::{self, ListenerConfig, ListenerTls};
use super::machine::Kind;
use super::topology::{Keys, Topology};
use super::{cluster, jwt, secret};

/// What is sent to every Envoy. Immutable; a change makes a new one.
#[derive(Clone, Debug)]
pub struct Resources {
    /// Of the policy whose lists all have their clusters in here.
    pub revision: u64,
    /// `None` until they are known: an Envoy that was sent none would drop the ones it has.
    upstreams: Option<Upstreams>,
    listeners: Set,
    tls: Option<ListenerTls>,
}

/// What a topology is made into.
#[derive(Clone, Debug)]
struct Upstreams {
    clusters: Set,
    secrets: Set,
    extensions: Set,
}

/// The resources of one type.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Set {
    /// A hash of the content: the same after a restart, so that a reconnecting Envoy is not sent what it has.
    pub version: String,
    pub items: BTreeMap<String, Any>,
}

impl Resources {
    /// The listener alone.
    pub fn new(listener: &ListenerConfig) -> Self {
        Self { revision: 0, upstreams: None, listeners: listeners(listener), tls: listener.tls.clone() }
    }

    /// The same listener with the clusters of a topology.
    pub fn with(&self, topology: &Topology) -> Self {
        let upstreams = Upstreams {
            clusters: clusters(topology),
            secrets: secrets(topology, self.tls.as_ref()),
            extensions: extensions(topology),
        };
        Self { revision: topology.revision, upstreams: Some(upstreams), ..self.clone() }
    }

    /// `None`: not known yet.
    pub(super) fn of(&self, kind: Kind) -> Option<&Set> {
        let upstreams = self.upstreams.as_ref();
        match kind {
            Kind::Cluster => upstreams.map(|upstreams| &upstreams.clusters),
            Kind::Secret => upstreams.map(|upstreams| &upstreams.secrets),
            Kind::Extension => upstreams.map(|upstreams| &upstreams.extensions),
            Kind::Listener => Some(&self.listeners),
        }
    }
}

/// Collects resources and hashes them.
#[derive(Default)]
struct Builder {
    hash: Sha256,
    items: BTreeMap<String, Any>,
}

impl Builder {
    /// One that has a single encoding: without a protobuf map of more than one entry.
    fn add<T: prost::Name>(&mut self, name: String, resource: T) {
        let resource = pack_any(resource);
        self.hash(&name, &resource.value);
        self.items.insert(name, resource);
    }

    fn hash(&mut self, name: &str, content: &[u8]) {
        for part in [name.as_bytes(), content] {
            self.hash.update((part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
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
    for (name, issuer) in &topology.issuers {
        if let Keys::Fetched { endpoint, .. } = &issuer.keys {
            set.add(name.clone(), cluster::issuer(name, endpoint));
        }
    }
    set.add(names::EMPTY_CLUSTER.to_owned(), cluster::empty());
    set.finish()
}

fn secrets(topology: &Topology, tls: Option<&ListenerTls>) -> Set {
    let issuers = topology.issuers.values().filter_map(|issuer| match &issuer.keys {
        Keys::Fetched { endpoint, .. } => Some(endpoint),
        Keys::Inline(_) => None,
    });
    let endpoints = topology.upstreams.values().map(|upstream| &upstream.endpoint).chain(issuers);
    let bundles = endpoints.filter_map(|endpoint| secret::bundle(&endpoint.trust));
    let bundles: BTreeMap<_, _> = bundles.map(|bundle| (bundle.name.clone(), bundle)).collect();
    let mut set = Builder::default();
    for (name, bundle) in bundles {
        set.add(name, bundle);
    }
    if let Some(tls) = tls {
        set.add(secret::LISTENER.to_owned(), secret::listener(tls));
    }
    set.finish()
}

fn extensions(topology: &Topology) -> Set {
    let (config, content) = jwt::config(topology);
    let mut set = Builder::default();
    set.hash(jwt::NAME, &content);
    set.items.insert(jwt::NAME.to_owned(), pack_any(config));
    set.finish()
}

fn listeners(config: &ListenerConfig) -> Set {
    let mut set = Builder::default();
    set.add(listener::NAME.to_owned(), listener::listener(config));
    set.finish()
}
