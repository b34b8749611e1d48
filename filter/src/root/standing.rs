//! What this Envoy says of itself to the control plane: who it is and how it stands.

use sluicegate_core::proto::dataplane as wire;
use sluicegate_core::state::{Head, StoreFault, Times, seat};

use crate::host;
use crate::store::HostStore;
use crate::vm::Shared;

/// How this Envoy stands.
pub fn standing_up(seats: &seat::Summary, now: Times, shared: &Shared) -> Result<wire::Standing, StoreFault> {
    let head = Head::read(&HostStore)?;
    let offset = head.control_plane_time(now.mono).saturating_sub_unsigned(now.wall);
    Ok(wire::Standing {
        policy_revision: seats.policy.revision,
        era: head.keys.era,
        key_revision: head.keys.revision,
        blocked_revision: head.announced.revision,
        records_waiting: seats.records_waiting,
        records_dropped: seats.records_dropped,
        traps: seats.traps,
        clock_offset_ms: if head.clock == 0 { 0 } else { offset / 1_000_000 },
        ready: head.complete && shared.policy.is_some(),
        overfull_buckets: 0,
        vms: seats.vms,
        requests_in_flight: seats.requests_in_flight,
    })
}

/// This Envoy's `node.id`.
pub fn node() -> String {
    text(&["xds", "node", "id"])
}

/// `major.minor.patch`, empty where Envoy does not say.
pub fn envoy_version() -> String {
    let number = |part| {
        let path = ["xds", "node", "user_agent_build_version", "version", part];
        let bytes = host::property(&path).ok()??;
        Some(u64::from_le_bytes(bytes.try_into().ok()?).to_string())
    };
    let parts: Option<Vec<String>> = ["major_number", "minor_number", "patch"].into_iter().map(number).collect();
    parts.unwrap_or_default().join(".")
}

fn text(path: &[&str]) -> String {
    let bytes = host::property(path).ok().flatten().unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}
