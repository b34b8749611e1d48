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
    /// Whose tokens are verified, by the name of the cluster where their keys are.
    pub issuers: BTreeMap<String, Issuer>,
}

/// An issuer of tokens (JWT).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    pub id: u32,
    /// The `iss` claim.
    pub iss: String,
    /// A token must be meant for one of these.
    pub audiences: Vec<String>,
    pub keys: Keys,
}

/// The keys that an issuer signs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// A JWK set.
    Inline(String),
    Fetched {
        uri: String,
        endpoint: Endpoint,
    },
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
    /// TLS under an authority of its own; `owner` names it among all of them.
    Ca { owner: String, pem: String },
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
