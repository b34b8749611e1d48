//! Names that both planes must spell alike.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::Position;

/// The cluster of one position.
pub fn position_cluster(position: Position) -> String {
    format!("sluicegate-position-{}", position_text(position))
}

/// A position in metadata: `<backend>-<credential>`.
pub fn position_text(position: Position) -> String {
    format!("{}-{}", position.backend, position.credential)
}

/// Reads what [`position_text`] wrote.
pub fn parse_position(text: &[u8]) -> Option<Position> {
    let (backend, credential) = std::str::from_utf8(text).ok()?.split_once('-')?;
    Some(Position { backend: backend.parse().ok()?, credential: credential.parse().ok()? })
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
/// The same, as a filter writes it: Envoy puts `wasm.` before it.
pub const FILTER_STATE_NAME: &str = "sluicegate";
/// The response header that carries the operation id.
pub const REQUEST_ID_HEADER: &str = "x-sluicegate-request-id";
/// What the value of [`FILTER_STATE`] starts with from admission on; the admitted route matches it.
pub const ADMITTED: &str = "ADMITTED";
/// What the value is for a stream of somebody else's, which the adapter lets pass as it is.
pub const PASSED: &str = "PASSED";
/// In an Envoy that is not managed, the path of an admitted request until the adapter writes the provider's: without an
/// adapter it asks a provider for nothing that exists.
pub const UNADAPTED_PATH: &str = "/sluicegate/unadapted";
/// Where a position cluster's host metadata says which position it is: a string, see [`position_text`].
pub const META_NAMESPACE: &str = "sluicegate";
pub const META_POSITION: &str = "position";
/// `root_id` and plugin name of the two filter entries; both share [`VM_ID`].
pub const GATE: &str = "sluicegate-gate";
pub const ADAPTER: &str = "sluicegate-adapter";
pub const VM_ID: &str = "sluicegate";
/// Envoy's filter that verifies tokens, which is the namespace of what it leaves in dynamic metadata; and under which names
/// it leaves a good token's payload.
pub const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";
pub const JWT_PAYLOAD: &str = "sluicegate";

/// Under which name it leaves what was wrong with a token, as this issuer would have it. Each is tried.
pub fn jwt_failure(issuer: u32) -> String {
    format!("sluicegate_failure_{issuer}")
}

/// The cluster of the control plane in the Envoy's bootstrap.
pub const CONTROL_PLANE_CLUSTER: &str = "sluicegate-control-plane";
/// Environment variable with the key under which credentials are sealed for this Envoy: 64 hex digits.
pub const SEAL_KEY_ENV: &str = "SLUICEGATE_SEAL_KEY";
/// Environment variable with the token by which this Envoy is known.
pub const NODE_TOKEN_ENV: &str = "SLUICEGATE_NODE_TOKEN";
