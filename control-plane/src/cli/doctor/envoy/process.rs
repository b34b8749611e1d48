//! The process: its version and options, logs, admin port, secrets, certificates, what it counted.

use std::net::IpAddr;

use chrono::{DateTime, Utc};
use serde_json::Value;

use sluicegate_core::policy::names::{CONTROL_PLANE_CLUSTER, SEAL_KEY_ENV};

use super::super::expiry;
use super::{Dumps, Findings, list, millis, sections, string, strings};
use crate::dataplane::{OLDEST_ENVOY, envoy_version};

pub(super) fn judge(dumps: &Dumps, now: DateTime<Utc>, findings: &mut Findings) {
    version(&dumps.server_info, findings);
    wasm(&dumps.server_info, findings);
    flush(&dumps.server_info, findings);
    loggers(&dumps.logging, findings);
    admin(&dumps.config, findings);
    secrets(&dumps.config, findings);
    certificates(&dumps.certs, now, findings);
    stream(dumps, findings);
    counters(&dumps.stats, findings);
}

/// `<commit>/1.40.0/Clean/RELEASE/BoringSSL`
fn version(info: &Value, findings: &mut Findings) {
    let text = string(info, "/version").and_then(|version| version.split('/').nth(1)).unwrap_or_default();
    let [major, minor, patch] = OLDEST_ENVOY;
    let remedy =
        format!("run {major}.{minor}.{patch} or newer: older ones crash when clients leave in a certain moment");
    match envoy_version(text) {
        Some(version) if version >= OLDEST_ENVOY => findings.good(&format!("is version {text}")),
        Some(_) => findings.bad(&format!("is version {text}"), &remedy),
        None => findings.warning("does not say which version it is", &remedy),
    }
}

fn wasm(info: &Value, findings: &mut Findings) {
    let extensions: Vec<&str> = info
        .pointer("/node/extensions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|extension| extension.get("name")?.as_str())
        .collect();
    let lacks =
        ["envoy.filters.http.wasm", "envoy.wasm.runtime.v8"].into_iter().find(|name| !extensions.contains(name));
    match lacks {
        None => findings.good("can run wasm filters"),
        Some(name) => findings.bad(&format!("was built without {name}"), "run a build that has it; official images do"),
    }
}

/// An access log that is seconds behind loses them with the process; Envoy's own default is ten.
const LATEST_FLUSH_MS: u64 = 1_000;

fn flush(info: &Value, findings: &mut Findings) {
    match millis(info, "/command_line_options/file_flush_interval") {
        Some(ms) if ms <= LATEST_FLUSH_MS => findings.good(&format!("writes its access log every {ms} ms")),
        Some(ms) => findings.warning(
            &format!("writes its access log every {ms} ms, and loses that much when it is killed"),
            "start it with --file-flush-interval-msec 10",
        ),
        None => findings.note("does not say how often it writes its access log"),
    }
}

fn loggers(logging: &str, findings: &mut Findings) {
    let levels: Vec<(&str, &str)> = logging.lines().filter_map(|line| line.trim().rsplit_once(": ")).collect();
    let loud: Vec<&str> =
        levels.iter().filter(|(_, level)| matches!(*level, "debug" | "trace")).map(|(logger, _)| *logger).collect();
    if levels.is_empty() {
        findings.warning("does not say how its loggers are set", "look at `POST /logging` of its admin interface");
    } else if let Some(first) = loud.first() {
        let more = if loud.len() > 1 { format!(" and {} more", loud.len() - 1) } else { String::new() };
        findings.bad(
            &format!("logs at debug or trace ({first}{more}), which prints headers with credentials"),
            "start it with --log-level info or above, no --component-log-level, and `POST /logging?level=info` now",
        );
    } else {
        findings.good("has no logger at debug or trace");
    }
}

fn admin(config: &Value, findings: &mut Findings) {
    let addresses: Vec<&Value> =
        sections(config, ".BootstrapConfigDump").filter_map(|dump| dump.pointer("/bootstrap/admin/address")).collect();
    for address in &addresses {
        let host = string(address, "/socket_address/address").unwrap_or_default();
        let local =
            address.get("pipe").is_some() || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
        if local {
            findings.good("has its admin port on loopback");
        } else {
            findings.bad(
                &format!("has its admin port on {host}, where others can stop it and read its configuration"),
                "let the bootstrap's `admin` listen on 127.0.0.1",
            );
        }
    }
    if addresses.is_empty() {
        findings.note("does not show where its admin port listens");
    }
}

/// So many characters after `sgn-` make it a token and not a name.
const TOKEN_CHARS: usize = 20;

/// Credentials of ours that anybody sees who may look at the configuration.
fn secrets(config: &Value, findings: &mut Findings) {
    let mut all = Vec::new();
    strings(config, "", &mut all);
    let token = |text: &str| {
        text.split("sgn-").skip(1).any(|rest| {
            rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')).count() >= TOKEN_CHARS
        })
    };
    if all.iter().any(|(_, text)| token(text)) {
        findings.bad(
            "shows its node token in config_dump",
            "give it as an environment variable through credential_injector (envoy/managed.yaml), and make a new token",
        );
    } else {
        findings.good("does not show its node token");
    }
    if all.iter().any(|(field, _)| *field == SEAL_KEY_ENV) {
        findings.bad(
            "shows its seal key in config_dump",
            "pass SLUICEGATE_SEAL_KEY by `host_env_keys`, and make a new node token with its key",
        );
    }
}

fn certificates(certs: &Value, now: DateTime<Utc>, findings: &mut Findings) {
    let mut seen = 0;
    for certificate in list(certs, "certificates") {
        for one in list(certificate, "ca_cert").chain(list(certificate, "cert_chain")) {
            let Some(end) = string(one, "/expiration_time").and_then(|time| time.parse::<DateTime<Utc>>().ok()) else {
                continue;
            };
            seen += 1;
            let path = string(one, "/path").unwrap_or("a certificate");
            expiry::judge(path, end, now, "replace it", findings);
        }
    }
    if seen == 0 {
        findings.note("holds no certificates: its channel to the control plane is plaintext");
    }
}

/// The sum of the counters and gauges whose name is chosen; `None` where there are none.
fn total(stats: &str, chosen: impl Fn(&str) -> bool) -> Option<u64> {
    let values = stats.lines().filter_map(|line| line.rsplit_once(": "));
    values
        .filter(|(name, _)| chosen(name))
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .reduce(u64::saturating_add)
}

/// The xDS stream, where it is one to us.
fn stream(dumps: &Dumps, findings: &mut Findings) {
    let mut services = sections(&dumps.config, ".BootstrapConfigDump")
        .filter_map(|dump| dump.pointer("/bootstrap/dynamic_resources/ads_config"))
        .flat_map(|ads| list(ads, "grpc_services"));
    let ours = services.any(|service| string(service, "/envoy_grpc/cluster_name") == Some(CONTROL_PLANE_CLUSTER));
    if ours && total(&dumps.stats, |name| name == "control_plane.connected_state") == Some(0) {
        findings.bad("has no xDS stream to the control plane", "look at its log and the cluster of the control plane");
    }
}

fn counters(stats: &str, findings: &mut Findings) {
    let reloads = |suffix: &'static str| {
        total(stats, |name| name.starts_with("wasm.sluicegate-") && name.ends_with(suffix)).unwrap_or(0)
    };
    let (traps, failures) = (reloads(".vm_reload"), reloads(".vm_reload_failure"));
    if failures > 0 {
        findings.bad(&format!("could not start its filter again {failures} times after a trap"), "read its log");
    } else if traps > 0 {
        findings.warning(
            &format!("its filter trapped and was started again {traps} times"),
            "read its log for what it said then; `sluicegate reconcile` books what those streams used",
        );
    } else {
        findings.good("its filter never trapped");
    }
    match total(stats, |name| name == "wasmcustom.sluicegate_ready") {
        Some(0) => findings.bad("its filter has no complete state", "look whether it reaches the control plane"),
        Some(_) => findings.good("its filter has its state"),
        None => findings.bad("runs no filter of ours", "look at the findings about its listeners, then at its log"),
    }
}
