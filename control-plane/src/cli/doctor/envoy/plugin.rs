//! The filter's two entries: gate in the listener's chain, adapter in the router's.

use serde_json::Value;
use sluicegate_core::plugin::{PluginConfig, Role};
use sluicegate_core::policy::names::SEAL_KEY_ENV;

use super::{Findings, is_type, list, millis, string};

/// An upstream answers 503 on a worker for so long after a trap; Envoy's default is a second.
const LONGEST_BACKOFF_MS: u64 = 100;

/// The gate's plugin configuration in a connection manager.
pub(super) fn gate(manager: &Value) -> Option<&Value> {
    entry(list(manager, "http_filters"), Role::Gate)
}

/// Whether all of the Envoy's configuration is ours, as opposed to the gate standing in somebody else's.
pub(super) fn is_managed(gate: &Value) -> bool {
    configured(gate).is_some_and(|config| config.attached.is_none())
}

/// The adapter's, in the router's chain.
fn adapter(manager: &Value) -> Option<&Value> {
    let routers = list(manager, "http_filters").filter_map(|filter| filter.get("typed_config"));
    let mut upstream = routers.filter(|config| is_type(config, ".Router"));
    entry(upstream.by_ref().flat_map(|router| list(router, "upstream_http_filters")), Role::Adapter)
}

fn entry<'a>(filters: impl Iterator<Item = &'a Value>, role: Role) -> Option<&'a Value> {
    let mut plugins = filters.filter_map(|filter| {
        let typed = filter.get("typed_config").filter(|config| is_type(config, ".wasm.v3.Wasm"))?;
        typed.get("config")
    });
    plugins.find(|plugin| configured(plugin).is_some_and(|config| config.role == role))
}

fn configured(plugin: &Value) -> Option<PluginConfig> {
    PluginConfig::parse(string(plugin, "/configuration/value")?.as_bytes()).ok()
}

pub(super) fn judge(listener: &str, manager: &Value, findings: &mut Findings) {
    let (Some(gate), adapter) = (gate(manager), adapter(manager)) else { return };
    let Some(adapter) = adapter else {
        findings.bad(
            &format!("listener {listener}: has the gate but no adapter: requests go out as they came"),
            "put the adapter into the router's upstream_http_filters, before upstream_codec",
        );
        return one(&format!("listener {listener}, gate"), gate, findings);
    };
    one(&format!("listener {listener}, gate"), gate, findings);
    one(&format!("listener {listener}, adapter"), adapter, findings);
    match string(gate, "/vm_config/vm_id") {
        None | Some("") => findings.bad(
            &format!(
                "listener {listener}: the filter has no vm_id: it shares its data with every plugin that has none"
            ),
            "set the same vm_id in both entries",
        ),
        Some(_) if gate.get("vm_config") != adapter.get("vm_config") => findings.bad(
            &format!("listener {listener}: gate and adapter have different vm_config and so are two VMs"),
            "make vm_config the same in both entries",
        ),
        Some(id) => findings.good(&format!("listener {listener}: gate and adapter are one VM ({id})")),
    }
}

/// What either entry must have.
fn one(about: &str, plugin: &Value, findings: &mut Findings) {
    let mut good = true;
    let mut bad = |fault: &str, remedy: &str| {
        good = false;
        findings.bad(&format!("{about}: {fault}"), remedy);
    };
    if plugin.get("allow_on_headers_stop_iteration") != Some(&Value::Bool(true)) {
        bad("requests with a body hang", "set allow_on_headers_stop_iteration");
    }
    let host_keys: Vec<&str> = plugin
        .pointer("/vm_config/environment_variables")
        .map(|variables| list(variables, "host_env_keys").filter_map(Value::as_str).collect())
        .unwrap_or_default();
    if !host_keys.contains(&SEAL_KEY_ENV) {
        bad("does not get its seal key, and so no provider credential", "name SLUICEGATE_SEAL_KEY in host_env_keys");
    }
    let policy = string(plugin, "/failure_policy").unwrap_or("FAIL_CLOSED, the default");
    if policy != "FAIL_RELOAD" {
        bad(&format!("failure_policy is {policy}: a trap is for good"), "set failure_policy: FAIL_RELOAD");
    }
    let backoff = millis(plugin, "/reload_config/backoff/base_interval");
    if policy == "FAIL_RELOAD" && backoff.is_none_or(|ms| ms > LONGEST_BACKOFF_MS) {
        good = false;
        let told = backoff.map_or("a second, the default,".to_owned(), |ms| format!("{ms} ms"));
        findings.warning(
            &format!("{about}: after a trap a worker refuses everything for {told} before the filter starts again"),
            "set reload_config.backoff: {base_interval: 0.01s, max_interval: 0.1s}",
        );
    }
    if good {
        findings.good(&format!("{about}: FAIL_RELOAD, and all else that it needs"));
    }
}
