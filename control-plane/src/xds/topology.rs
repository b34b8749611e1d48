//! What the clusters are built from: the positions of a policy, where they lead and in which lists they stand.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sluicegate_core::policy::{Position, names};

/// All upstreams that one policy revision can send a request to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Revision of the policy that names these lists.
    pub revision: u64,
    /// One per position that stands in a list, by its cluster's name.
    pub upstreams: BTreeMap<String, Upstream>,
    /// Names of position clusters in the order they are tried, by the list's name.
    pub lists: BTreeMap<String, Vec<String>>,
}

/// One position and where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    pub position: Position,
    pub endpoint: Endpoint,
}

/// Host and port of a provider, and whom to trust there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A DNS name or an IP address, without brackets.
    pub host: String,
    pub port: u16,
    pub trust: Trust,
}

/// How the provider proves who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Plain HTTP: nothing is proved. For loopback and meshes.
    Plaintext,
    /// TLS under the public roots.
    PublicRoots,
    /// TLS under the provider's own authority.
    Ca { provider: u32, pem: String },
}

impl Topology {
    /// Adds a list and the upstreams in it.
    pub fn add_list(&mut self, list: &[Upstream]) {
        let positions: Vec<Position> = list.iter().map(|u| u.position).collect();
        let clusters = positions.iter().map(|p| names::position_cluster(*p)).collect();
        self.lists.insert(names::list_cluster(&positions), clusters);
        for upstream in list {
            self.upstreams.insert(names::position_cluster(upstream.position), upstream.clone());
        }
    }
}

impl Endpoint {
    /// The address, where the host is one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}
