//! What differs where listeners, routes and clusters are somebody else's.
//!
//! Nothing of theirs is relied on. Their streams are marked and left alone. Ours carry no credential of a client and ask
//! for a path that exists nowhere until the adapter has written the provider's; and it does so only on the way to the
//! cluster that they named for the provider.

use sluicegate_core::dialect::openai;
use sluicegate_core::exchange::{Exchange, Head};
use sluicegate_core::plugin::Attached;
use sluicegate_core::policy::{Position, names};
use sluicegate_core::refusal::Refusal;

use crate::host::{self, Headers, Map};

/// Whether a request with these headers is ours.
pub fn covers(attached: &Attached, headers: &Headers) -> bool {
    let (mut authority, mut path): (&[u8], &[u8]) = (b"", b"");
    for (name, value) in headers.iter() {
        match name {
            b":authority" => authority = value,
            b":path" => path = value,
            _ => {}
        }
    }
    attached.scope.covers(authority, path)
}

/// Tells the adapter that a stream is not ours.
pub fn pass() -> host::HostResult<()> {
    host::set_filter_state(names::FILTER_STATE_NAME, names::PASSED.as_bytes())
}

/// Whether an attempt is not ours: the gate said so, or no gate saw it (the copy that a mirroring route makes) and nothing
/// about it is ours.
pub fn is_theirs(attached: &Attached, state: &[u8]) -> bool {
    if !state.is_empty() {
        return state == names::PASSED.as_bytes();
    }
    let cluster = chosen_cluster();
    let reaches_a_provider = attached.clusters.values().any(|reaches| reaches.as_bytes() == cluster);
    let Ok(headers) = host::headers(Map::RequestHeaders) else { return false };
    !cluster.is_empty() && !reaches_a_provider && !covers(attached, &headers)
}

fn chosen_cluster() -> Vec<u8> {
    host::property(&["xds", "cluster_name"]).ok().flatten().unwrap_or_default()
}

/// Takes the client's credentials away, which no route of ours does here.
pub fn clean(head: &Head) -> host::HostResult<()> {
    head.carriers.iter().try_for_each(|name| host::remove_header(Map::RequestHeaders, name.as_bytes()))
}

/// Leads an admitted request to the cluster of its provider, useless to anyone before the adapter has seen it. Before it
/// is marked, so that its route is matched with the path it has then.
pub fn send(attached: &Attached, exchange: &mut Exchange) -> Result<(), Refusal> {
    exchange.attach(&attached.clusters)?;
    host::set_header(Map::RequestHeaders, b":path", names::UNADAPTED_PATH.as_bytes())
        .map_err(|_| Refusal::Internal { what: "the request's path is not writable" })
}

/// The one position of an exchange, if Envoy has chosen the cluster that reaches it: no other gets a credential.
pub fn position(exchange: &Exchange) -> Result<Position, Refusal> {
    match exchange.positions.first() {
        Some(position) if chosen_cluster() == exchange.cluster.as_bytes() => Ok(*position),
        _ => Err(Refusal::Misconfigured { option: "the route for admitted requests" }),
    }
}

/// Removes every header that is not for a provider, whoever added it.
pub fn strip() -> host::HostResult<()> {
    for (name, _) in host::headers(Map::RequestHeaders)?.iter() {
        if !name.starts_with(b":") && !openai::forwards(name) {
            host::remove_header(Map::RequestHeaders, name)?;
        }
    }
    Ok(())
}
