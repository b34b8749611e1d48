//! The routes: what the gate admitted goes to its list, and nothing else reaches a provider.

use serde_json::Value;
use sluicegate_core::policy::names::{ADMITTED, EMPTY_CLUSTER, FILTER_STATE, LIST_HEADER};

use super::{Findings, list, millis, number, string};

/// The routes of a connection manager that has the gate.
#[derive(Debug)]
pub(super) struct Routes<'a> {
    /// The listener's name.
    pub listener: &'a str,
    pub manager: &'a Value,
    pub table: &'a Value,
    /// Whether every route must be ours.
    pub managed: bool,
    /// What the listener buffers per connection, and the largest body that the gate takes; bytes.
    pub connection_limit: u64,
    pub body_limit: u64,
}

pub(super) fn judge(routes: &Routes<'_>, findings: &mut Findings) {
    let Routes { listener, manager, table, managed, .. } = *routes;
    let before = findings.all.len();
    let mut admitted = 0;
    for host in list(table, "virtual_hosts") {
        let about = format!("listener {listener}, virtual host {}", string(host, "/name").unwrap_or_default());
        let ours = order(&about, host, managed, findings);
        admitted += ours.len();
        if let Some(route) = ours.first() {
            body(&about, host, route, routes, findings);
            timers(&about, route, manager, findings);
        }
    }
    if admitted == 0 {
        findings.bad(
            &format!("listener {listener}: no route leads to the lists, so nothing admitted is served"),
            &format!("add one that matches the filter state {FILTER_STATE} and has cluster_header {LIST_HEADER}"),
        );
    }
    if managed && !removes_list_header(manager) {
        findings.warning(
            &format!("listener {listener}: a client's own {LIST_HEADER} takes part in the first match of routes"),
            "remove it in early_header_mutation_extensions",
        );
    }
    if findings.all.len() == before {
        findings.good(&format!("listener {listener}: routes let through what is admitted, and nothing else"));
    }
}

/// The routes to the lists that a request can come by. Says what is wrong with them, or stands before or beside them.
fn order<'a>(about: &str, host: &'a Value, managed: bool, findings: &mut Findings) -> Vec<&'a Value> {
    let mut ours = Vec::new();
    let mut shadow = None;
    for route in list(host, "routes") {
        let name = string(route, "/name").filter(|name| !name.is_empty()).unwrap_or("without a name");
        if leads_to_lists(route) {
            if !wants_admission(route) {
                findings.bad(
                    &format!("{about}: route {name} leads to the lists without the gate's leave"),
                    &format!("match the filter state {FILTER_STATE} by the prefix {ADMITTED} in it"),
                );
            }
            match shadow {
                Some(before) => findings.bad(
                    &format!("{about}: route {name} is never reached: {before} takes every request before it"),
                    "put it first",
                ),
                None => ours.push(route),
            }
        } else if managed && string(route, "/route/cluster") != Some(EMPTY_CLUSTER) {
            findings.bad(
                &format!("{about}: route {name} leads past the gate"),
                &format!("let it lead to {EMPTY_CLUSTER}, or take it out"),
            );
        }
        if takes_all(route) {
            shadow.get_or_insert(name);
        }
    }
    ours
}

fn leads_to_lists(route: &Value) -> bool {
    string(route, "/route/cluster_header").is_some_and(|header| header.eq_ignore_ascii_case(LIST_HEADER))
}

fn wants_admission(route: &Value) -> bool {
    route.get("match").is_some_and(|conditions| {
        list(conditions, "filter_state").any(|state| {
            string(state, "/key") == Some(FILTER_STATE)
                && string(state, "/string_match/prefix").is_some_and(|prefix| prefix.starts_with(ADMITTED))
        })
    })
}

/// Whether no request passes it by.
fn takes_all(route: &Value) -> bool {
    let Some(conditions) = route.get("match").and_then(Value::as_object) else { return false };
    conditions.len() == 1 && conditions.get("prefix").is_some_and(|prefix| prefix == "/" || prefix == "")
}

/// A body waits for its admission on whichever route its headers match, then on the one to the lists. Measured: the larger
/// of the connection's and the route's limit admits it; a route's below that only ends further attempts.
fn body(about: &str, host: &Value, admitted: &Value, routes: &Routes<'_>, findings: &mut Findings) {
    let own = |message: &Value| {
        number(message, "/request_body_buffer_limit").or_else(|| number(message, "/per_request_buffer_limit_bytes"))
    };
    let limits = list(host, "routes").map(|route| own(route).or_else(|| own(host)).unwrap_or(0));
    let waits = limits.min().unwrap_or(0).max(routes.connection_limit);
    let limit = routes.body_limit;
    let remedy = format!("set request_body_buffer_limit to {limit} or more on the virtual host");
    if waits < limit {
        findings.bad(&format!("{about}: requests of more than {waits} bytes end in a 413"), &remedy);
    } else if let Some(kept) = own(admitted).or_else(|| own(host)).filter(|kept| *kept < limit) {
        findings.warning(&format!("{about}: requests of more than {kept} bytes get no second attempt"), &remedy);
    }
}

/// Reasoning models think for minutes without a byte, and answer for longer.
const SHORTEST_MS: u64 = 600_000;
/// Envoy's own defaults.
const DEFAULT_IDLE_MS: u64 = 300_000;
const DEFAULT_TIMEOUT_MS: u64 = 15_000;

fn timers(about: &str, admitted: &Value, manager: &Value, findings: &mut Findings) {
    let idle = millis(admitted, "/route/idle_timeout").or_else(|| millis(manager, "/stream_idle_timeout"));
    let timers = [
        ("idle_timeout", idle.unwrap_or(DEFAULT_IDLE_MS), "streams that are silent for"),
        ("timeout", millis(admitted, "/route/timeout").unwrap_or(DEFAULT_TIMEOUT_MS), "answers that take longer than"),
    ];
    // Zero is never.
    for (field, ms, what) in timers.into_iter().filter(|(_, ms, _)| (1..SHORTEST_MS).contains(ms)) {
        let fault = format!("{about}: cuts {what} {} s, as those of reasoning models do", ms / 1000);
        let remedy = format!("set {field} of the route to the lists to 0s or at least {} s", SHORTEST_MS / 1000);
        findings.warning(&fault, &remedy);
    }
}

fn removes_list_header(manager: &Value) -> bool {
    list(manager, "early_header_mutation_extensions")
        .filter_map(|extension| extension.get("typed_config"))
        .flat_map(|config| list(config, "mutations"))
        .any(|mutation| string(mutation, "/remove").is_some_and(|name| name.eq_ignore_ascii_case(LIST_HEADER)))
}
