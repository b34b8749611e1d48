//! What an entry needs to know of an Envoy whose listeners, routes and clusters are somebody else's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Scope;

/// Absent in a managed Envoy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attached {
    /// By a provider's name, the cluster of theirs that reaches it.
    pub clusters: BTreeMap<String, String>,
    /// Which of their streams are ours.
    #[serde(default, skip_serializing_if = "Scope::is_everything")]
    pub scope: Scope,
}

impl Attached {
    /// # Errors
    /// The field at fault, and why.
    pub fn check(&self) -> Result<(), String> {
        if self.clusters.is_empty() {
            return Err("clusters: must name a cluster for at least one provider".to_owned());
        }
        for (provider, cluster) in &self.clusters {
            // The name goes into a request header.
            if cluster.is_empty() || !cluster.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(format!(
                    "clusters.{provider}: must be a cluster's name, in printable ASCII without spaces"
                ));
            }
        }
        self.scope.check()
    }
}
