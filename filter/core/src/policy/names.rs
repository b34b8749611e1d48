//! Names that both planes must spell alike.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::Position;

/// The cluster of one position.
pub fn position_cluster(position: Position) -> String {
    format!("sluicegate-position-{}-{}", position.backend, position.credential)
}

/// The aggregate cluster of an ordered list: a hash of what is in it, so that a name never changes meaning.
pub fn list_cluster(positions: &[Position]) -> String {
    let mut hash = Sha256::new();
    for p in positions {
        hash.update(p.backend.to_le_bytes());
        hash.update(p.credential.to_le_bytes());
    }
    let mut name = "sluicegate-list-".to_owned();
    for byte in hash.finalize().iter().take(12) {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// The cluster without endpoints behind the catch-all routes.
pub const EMPTY_CLUSTER: &str = "sluicegate-empty";
/// The request header by which the admitted route picks the list's cluster. Removed from clients before any route is matched.
pub const LIST_HEADER: &str = "x-sluicegate-list";
/// The one filter-state key of a request, as Envoy names it: plan while it runs, record in the access log.
pub const FILTER_STATE: &str = "wasm.sluicegate";
/// What the value of [`FILTER_STATE`] starts with from admission on; the admitted route matches it.
pub const ADMITTED: &str = "ADMITTED";
/// Metadata namespace of a position cluster's host; keys [`META_BACKEND`] and [`META_CREDENTIAL`] hold decimal strings.
pub const META_NAMESPACE: &str = "sluicegate";
pub const META_BACKEND: &str = "backend";
pub const META_CREDENTIAL: &str = "credential";
/// `root_id` and plugin name of the two filter entries; both share [`VM_ID`].
pub const GATE: &str = "sluicegate-gate";
pub const ADAPTER: &str = "sluicegate-adapter";
pub const VM_ID: &str = "sluicegate";
/// The cluster of the control plane in the Envoy's bootstrap.
pub const CONTROL_PLANE_CLUSTER: &str = "sluicegate-control-plane";
/// Environment variable with the key under which credentials are sealed for this Envoy: 64 hex digits.
pub const SEAL_KEY_ENV: &str = "SLUICEGATE_SEAL_KEY";
/// Environment variable with the token by which this Envoy is known.
pub const NODE_TOKEN_ENV: &str = "SLUICEGATE_NODE_TOKEN";
