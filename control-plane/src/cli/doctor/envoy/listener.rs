//! The listeners that the gate stands in, and what each must have for it.

use serde_json::Value;

use super::routes::{self, Routes};
use super::{Findings, formats, is_type, list, number, plugin, sections, string};

/// The largest request body that the gate takes.
const BODY_LIMIT: u64 = 32 << 20;
/// Envoy's own default.
const DEFAULT_BUFFER: u64 = 1 << 20;

/// An HTTP connection manager with the gate in it.
struct Guarded<'a> {
    listener: &'a Value,
    name: &'a str,
    manager: &'a Value,
    /// Whether listener and routes are ours.
    managed: bool,
}

pub(super) fn judge(config: &Value, findings: &mut Findings) {
    refused(config, findings);
    let guarded: Vec<Guarded<'_>> = listeners(config).flat_map(guarded).collect();
    if guarded.is_empty() {
        findings.bad(
            "no listener has the gate: its traffic is not ours",
            "look whether it reaches the control plane (managed), or put the rendered entries in (attached)",
        );
    }
    for one in &guarded {
        let name = one.name;
        plugin::judge(name, one.manager, findings);
        buffers(one, findings);
        let tables = tables(config, one.manager);
        if tables.is_empty() {
            findings.note(&format!("listener {name}: its routes are not in the dump"));
        }
        for table in &tables {
            let routes = Routes {
                listener: name,
                manager: one.manager,
                table,
                managed: one.managed,
                connection_limit: connection_limit(one),
                body_limit: BODY_LIMIT,
            };
            routes::judge(&routes, findings);
        }
        formats::judge(name, one.listener, one.manager, findings);
    }
}

/// Listeners that Envoy was given and did not take.
fn refused(config: &Value, findings: &mut Findings) {
    for dump in sections(config, ".ListenersConfigDump").flat_map(|dump| list(dump, "dynamic_listeners")) {
        if let Some(why) = string(dump, "/error_state/details") {
            let name = string(dump, "/name").unwrap_or_default();
            let line = why.lines().next().unwrap_or_default();
            findings.bad(&format!("listener {name}: refused: {line}"), "change what it complains about");
        }
    }
}

/// Those in force, of xDS and of the bootstrap.
fn listeners(config: &Value) -> impl Iterator<Item = &Value> {
    sections(config, ".ListenersConfigDump").flat_map(|dump| {
        let dynamic = list(dump, "dynamic_listeners").filter_map(|listener| listener.pointer("/active_state/listener"));
        dynamic.chain(list(dump, "static_listeners").filter_map(|listener| listener.get("listener")))
    })
}

fn guarded(listener: &Value) -> Vec<Guarded<'_>> {
    let name = string(listener, "/name").filter(|name| !name.is_empty()).unwrap_or("without a name");
    let chains = list(listener, "filter_chains").chain(listener.get("default_filter_chain"));
    let managers = chains.flat_map(|chain| list(chain, "filters")).filter_map(|filter| filter.get("typed_config"));
    let managers = managers.filter(|config| is_type(config, ".HttpConnectionManager"));
    let guarded =
        |manager| Some(Guarded { listener, name, manager, managed: plugin::is_managed(plugin::gate(manager)?) });
    managers.filter_map(guarded).collect()
}

fn connection_limit(one: &Guarded<'_>) -> u64 {
    number(one.listener, "/per_connection_buffer_limit_bytes").unwrap_or(DEFAULT_BUFFER)
}

fn buffers(one: &Guarded<'_>, findings: &mut Findings) {
    let (name, bytes) = (one.name, connection_limit(one));
    if bytes >= BODY_LIMIT {
        findings.good(&format!("listener {name}: buffers {} MiB per connection", bytes >> 20));
    } else if one.managed {
        findings.warning(
            &format!(
                "listener {name}: buffers {bytes} bytes per connection; larger answers that must be held back fail"
            ),
            &format!("set per_connection_buffer_limit_bytes to {BODY_LIMIT} or more"),
        );
    }
}

/// The route tables of a manager: its own, or the one that RDS brings.
fn tables<'a>(config: &'a Value, manager: &'a Value) -> Vec<&'a Value> {
    if let Some(own) = manager.get("route_config") {
        return vec![own];
    }
    let Some(name) = string(manager, "/rds/route_config_name") else { return Vec::new() };
    let dynamic = sections(config, ".RoutesConfigDump").flat_map(|dump| list(dump, "dynamic_route_configs"));
    dynamic.filter_map(|route| route.get("route_config")).filter(|table| string(table, "/name") == Some(name)).collect()
}
