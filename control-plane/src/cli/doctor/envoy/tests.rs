use serde_json::{Value, json};

use super::*;

/// Taken from an Envoy 1.40.0 under the control plane of this tree.
const FIXTURE: &str = include_str!("fixture.json");

const LISTENER: &str = "/config/configs/1/dynamic_listeners/0/active_state/listener";
const MANAGER: &str =
    "/config/configs/1/dynamic_listeners/0/active_state/listener/filter_chains/0/filters/0/typed_config";

fn fixture() -> Value {
    serde_json::from_str(FIXTURE).unwrap()
}

fn told(dumps: &Value) -> Vec<String> {
    let text = |field: &str| dumps[field].as_str().unwrap().to_owned();
    let dumps = Dumps {
        server_info: dumps["server_info"].clone(),
        config: dumps["config"].clone(),
        certs: dumps["certs"].clone(),
        logging: text("logging"),
        stats: text("stats"),
    };
    judge("e", &dumps, "2026-12-01T00:00:00Z".parse().unwrap()).iter().map(Finding::line).collect()
}

/// Sets what a pointer leads to, or takes it out for null; what must be there is.
fn set(dumps: &mut Value, pointer: &str, to: Value) {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match dumps.pointer_mut(parent).unwrap_or_else(|| panic!("{pointer}")) {
        Value::Array(items) => {
            let i: usize = field.parse().unwrap();
            if to.is_null() { drop(items.remove(i)) } else { items[i] = to }
        }
        Value::Object(fields) => {
            if to.is_null() {
                assert!(fields.remove(field).is_some(), "{pointer}");
            } else {
                fields.insert(field.to_owned(), to);
            }
        }
        _ => panic!("{pointer}"),
    }
}

/// What is found that is not good, after a change.
fn faults(changes: &[(&str, Value)]) -> Vec<String> {
    let mut dumps = fixture();
    for (pointer, to) in changes {
        set(&mut dumps, pointer, to.clone());
    }
    told(&dumps).into_iter().filter(|line| !line.starts_with("OK ")).collect()
}

/// The one fault after one change.
fn fault(pointer: &str, to: Value) -> String {
    let mut all = faults(&[(pointer, to.clone())]);
    assert_eq!(all.len(), 1, "{pointer} = {to}: {all:#?}");
    all.remove(0)
}

fn in_manager(pointer: &str, to: Value) -> String {
    fault(&format!("{MANAGER}{pointer}"), to)
}

#[test]
fn a_managed_envoy_is_good() {
    let all = told(&fixture());
    assert!(all.len() > 15 && all.iter().all(|line| line.starts_with("OK   Envoy e: ")), "{all:#?}");
}

#[test]
fn the_process_is_judged() {
    let old = "c5/1.38.1/Clean/RELEASE/BoringSSL";
    assert!(fault("/server_info/version", json!(old)).starts_with("FAIL Envoy e: is version 1.38.1; run 1.38.2"));
    assert!(fault("/server_info/version", json!("x")).starts_with("WARN Envoy e: does not say"));
    assert!(fault("/server_info/node/extensions", json!([])).contains("FAIL Envoy e: was built without"));
    let flush = "/server_info/command_line_options/file_flush_interval";
    assert!(fault(flush, json!("10s")).starts_with("WARN Envoy e: writes its access log every 10000 ms"));
    let loud = "active loggers:\n  admin: warning\n  http: debug\n  wasm: trace\n\n";
    assert!(fault("/logging", json!(loud)).starts_with("FAIL Envoy e: logs at debug or trace (http and 1 more)"));
    assert!(fault("/logging", json!("")).starts_with("WARN Envoy e: does not say how its loggers"));
    let admin = "/config/configs/0/bootstrap/admin/address";
    for away in ["0.0.0.0", "::", "10.1.2.3"] {
        let line = fault(&format!("{admin}/socket_address/address"), json!(away));
        assert!(line.starts_with(&format!("FAIL Envoy e: has its admin port on {away}")), "{line}");
    }
    assert!(faults(&[(admin, json!({"pipe": {"path": "/run/admin"}}))]).is_empty());
    assert!(faults(&[(&format!("{admin}/socket_address/address"), json!("::1"))]).is_empty());
}

#[test]
fn secrets_and_certificates_are_judged() {
    let secret = "/config/configs/0/bootstrap/static_resources/secrets/0/generic_secret/secret";
    let token = json!({"inline_string": format!("Bearer sgn-{}", "0a".repeat(32))});
    assert!(fault(secret, token).starts_with("FAIL Envoy e: shows its node token"));
    assert!(faults(&[(secret, json!({"inline_string": "sgn-east"}))]).is_empty());
    let end = "/certs/certificates/0/ca_cert/0/expiration_time";
    assert!(fault(end, json!("2026-11-30T00:00:00Z")).starts_with("FAIL Envoy e: /data/ca.pem has expired"));
    assert!(fault(end, json!("2026-12-10T00:00:00Z")).starts_with("WARN Envoy e: /data/ca.pem expires at 2026-12-10"));
}

#[test]
fn what_it_counted_is_judged() {
    let stats = fixture()["stats"].as_str().unwrap().to_owned();
    let with = |from: &str, to: &str| {
        assert!(stats.contains(from), "{from}");
        faults(&[("/stats", json!(stats.replace(from, to)))]).join("")
    };
    let reload = "wasm.sluicegate-gate.vm_reload: 0";
    assert!(with(reload, "wasm.sluicegate-gate.vm_reload: 2").starts_with("WARN Envoy e: its filter trapped"));
    let failed = "wasm.sluicegate-gate.vm_reload_failure: 0";
    assert!(with(failed, "wasm.sluicegate-gate.vm_reload_failure: 1").starts_with("FAIL Envoy e: could not start"));
    assert!(with("connected_state: 1", "connected_state: 0").starts_with("FAIL Envoy e: has no xDS stream"));
    assert!(with("sluicegate_ready: 1", "sluicegate_ready: 0").starts_with("FAIL Envoy e: its filter has no complete"));
    assert!(with("wasmcustom.", "other.").starts_with("FAIL Envoy e: runs no filter of ours"));
}

#[test]
fn the_entries_are_judged() {
    let gate = "/http_filters/1/typed_config/config";
    let adapter = "/http_filters/2/typed_config/upstream_http_filters/0/typed_config/config";
    for (about, entry) in [("gate", gate), ("adapter", adapter)] {
        let line = |field: &str, to: Value| in_manager(&format!("{entry}/{field}"), to);
        let starts = |line: String, what: &str| {
            assert!(
                line.starts_with(&format!("{} Envoy e: listener sluicegate, {about}: {what}", &line[..4])),
                "{line}"
            );
        };
        for policy in [json!("FAIL_OPEN"), Value::Null] {
            starts(line("failure_policy", policy), "failure_policy is FAIL_");
        }
        starts(line("allow_on_headers_stop_iteration", Value::Null), "requests with a body hang");
        for slow in ["/reload_config", "/reload_config/backoff/base_interval"] {
            let line = in_manager(&format!("{entry}{slow}"), Value::Null);
            assert!(line.starts_with("WARN"), "{line}");
        }
        starts(
            line("reload_config/backoff/base_interval", json!("1s")),
            "after a trap a worker refuses everything for 1000",
        );
    }
    assert!(in_manager(&format!("{adapter}/vm_config/vm_id"), json!("other")).contains("different vm_config"));
    let ids: Vec<String> = [gate, adapter].iter().map(|entry| format!("{MANAGER}{entry}/vm_config/vm_id")).collect();
    let without = faults(&[(&ids[0], Value::Null), (&ids[1], json!(""))]);
    assert!(without.join("").contains("FAIL Envoy e: listener sluicegate: the filter has no vm_id"), "{without:#?}");
    assert!(in_manager("/http_filters/2/typed_config/upstream_http_filters/0", Value::Null).contains("but no adapter"));
    assert!(in_manager("/http_filters/1", Value::Null).contains("no listener has the gate"));
    let shown = format!("{MANAGER}{gate}/vm_config/environment_variables");
    let shown = faults(&[(&shown, json!({"key_values": {"SLUICEGATE_SEAL_KEY": "00"}}))]).join("");
    assert!(shown.contains("shows its seal key") && shown.contains("does not get its seal key"), "{shown}");
}

#[test]
fn buffers_and_timers_are_judged() {
    let connection = format!("{LISTENER}/per_connection_buffer_limit_bytes");
    let host = format!("{MANAGER}/route_config/virtual_hosts/0");
    let on_host = format!("{host}/request_body_buffer_limit");
    for limit in [Value::Null, json!(1 << 20)] {
        let line = fault(&connection, limit);
        assert!(line.starts_with("WARN Envoy e: listener sluicegate: buffers 1048576 bytes per connection"), "{line}");
    }
    // Either limit admits a body; the route's alone decides on a second attempt.
    assert!(faults(&[(&on_host, Value::Null)]).is_empty());
    let once = fault(&on_host, json!("2097152"));
    assert!(once.starts_with("WARN") && once.contains("more than 2097152 bytes get no second attempt"), "{once}");
    for limit in [Value::Null, json!("2097152")] {
        let line = faults(&[(&connection, Value::Null), (&on_host, limit)]).join("");
        assert!(line.contains("FAIL") && line.contains("bytes end in a 413"), "{line}");
    }
    // On the route to the lists alone it comes too late: a body waits on another.
    let late = (format!("{host}/routes/0/request_body_buffer_limit"), json!("67108864"));
    let late = faults(&[(&connection, Value::Null), (&on_host, Value::Null), (&late.0, late.1)]).join("");
    assert!(late.contains("more than 1048576 bytes end in a 413"), "{late}");
    let route = format!("{MANAGER}/route_config/virtual_hosts/0/routes/0/route");
    let (idle, timeout) = (format!("{route}/idle_timeout"), format!("{route}/timeout"));
    assert!(fault(&idle, json!("60s")).contains("cuts streams that are silent for 60 s"));
    assert!(fault(&timeout, Value::Null).contains("cuts answers that take longer than 15 s"));
    let stream_idle = format!("{MANAGER}/stream_idle_timeout");
    assert!(faults(&[(&stream_idle, Value::Null)]).is_empty());
    let default = faults(&[(&stream_idle, Value::Null), (&idle, Value::Null)]).join("");
    assert!(default.starts_with("WARN") && default.contains("silent for 300 s"), "{default}");
    assert!(faults(&[(&stream_idle, json!("0s")), (&idle, Value::Null)]).is_empty());
    let mut refused = fixture();
    let details = json!({"details": "duplicate address\nmore"});
    refused["config"]["configs"][1]["dynamic_listeners"][0]["error_state"] = details;
    assert!(told(&refused).iter().any(|line| line.contains("FAIL Envoy e: listener sluicegate: refused: duplicate")));
}

#[test]
fn routes_are_judged() {
    let routes = "/route_config/virtual_hosts/0/routes";
    let table = fixture().pointer(&format!("{MANAGER}{routes}")).unwrap().clone();
    let [admitted, bodyless, rest] = [&table[0], &table[1], &table[2]];
    let line = in_manager(&format!("{routes}/0/match/filter_state"), Value::Null);
    assert!(line.contains("route admitted leads to the lists without the gate's leave"), "{line}");
    let late = faults(&[(&format!("{MANAGER}{routes}"), json!([bodyless, rest, admitted]))]).join("");
    assert!(late.contains("route admitted is never reached: catchall takes every request before it"), "{late}");
    assert!(faults(&[(&format!("{MANAGER}{routes}"), json!([bodyless, admitted, rest]))]).is_empty());
    let gone = in_manager(routes, json!([bodyless, rest]));
    assert!(gone.contains("no route leads to the lists"), "{gone}");
    let past = in_manager(&format!("{routes}/2/route/cluster"), json!("backend"));
    assert!(past.contains("FAIL") && past.contains("route catchall leads past the gate"), "{past}");
    // Somebody else's listener has somebody else's routes, and buffers as it likes.
    let attached =
        json!({"role": "gate", "cluster": "cp", "version": 1, "attached": {"clusters": {"openai": "openai"}}});
    let theirs = [
        (format!("{MANAGER}{routes}/2/route/cluster"), json!("backend")),
        (format!("{MANAGER}/http_filters/1/typed_config/config/configuration/value"), json!(attached.to_string())),
        (format!("{MANAGER}/early_header_mutation_extensions"), Value::Null),
        (format!("{LISTENER}/per_connection_buffer_limit_bytes"), Value::Null),
    ];
    let theirs: Vec<(&str, Value)> = theirs.iter().map(|(pointer, to)| (pointer.as_str(), to.clone())).collect();
    assert_eq!(faults(&theirs), [""; 0]);
    assert!(in_manager("/early_header_mutation_extensions", Value::Null).starts_with("WARN"));
}

#[test]
fn access_logs_are_judged() {
    let log = |format: Value| {
        let format = json!([{"typed_config": {"@type": "x/a.FileAccessLog", "path": "/x", "log_format": format}}]);
        faults(&[(&format!("{MANAGER}/access_log"), format)])
    };
    let record = "%FILTER_STATE(wasm.sluicegate:PLAIN)%";
    let text = |format: &str| log(json!({"text_format_source": {"inline_string": format!("{format} {record}\n")}}));
    for safe in
        ["%REQ(:METHOD)%", "%PATH(NQ)%", "100% %REQ(USER-AGENT)%", "%%REQ", "authorization: no", "%START_TIME(%H)%"]
    {
        assert_eq!(text(safe), [""; 0], "{safe}");
    }
    for (bad, header) in [
        ("%REQ(AUTHORIZATION)%", "authorization"),
        ("%REQ(X-NONE?Authorization):12%", "authorization"),
        ("%START_TIME(%H:%M)% %REQ(x-api-key)%", "x-api-key"),
        ("50% %REQ(COOKIE)%", "cookie"),
        ("%RESP(SET-COOKIE)%", "set-cookie"),
        ("%CEL(request.headers['x-goog-api-key'])%", "x-goog-api-key"),
        ("%REQ(X-SLUICEGATE-KEY)%", "x-sluicegate-key"),
    ] {
        let all = text(bad);
        assert_eq!(all.len(), 1, "{bad}: {all:#?}");
        assert!(all[0].starts_with("FAIL") && all[0].contains(&format!("credential header {header} (")), "{all:#?}");
    }
    let json_format = log(json!({"json_format": {"a": {"b": ["%REQ(Authorization)%"]}, "usage": record}}));
    assert!(json_format.len() == 1 && json_format[0].contains("header authorization"), "{json_format:#?}");
    for query in ["%REQ(:PATH)%", "%PATH(WQ)%", "%PATH%", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"] {
        let all = text(query);
        assert!(all.len() == 1 && all[0].starts_with("WARN") && all[0].contains("queries"), "{query}: {all:#?}");
    }
    let without = log(json!({"text_format_source": {"inline_string": "%REQ(:METHOD)%\n"}}));
    assert!(without.len() == 1 && without[0].contains("no access log holds the usage record"), "{without:#?}");
    let default =
        faults(&[(&format!("{MANAGER}/access_log"), json!([{"typed_config": {"@type": "x/a.FileAccessLog"}}]))]);
    assert!(default.len() == 2 && default[0].contains("Envoy's default format"), "{default:#?}");
    let router = format!("{MANAGER}/http_filters/2/typed_config/upstream_log");
    let grpc = json!([{"typed_config": {"@type": "x/a.HttpGrpcAccessLogConfig", "additional_request_headers_to_log": ["Api-Key"]}}]);
    assert!(faults(&[(&router, grpc)]).join("").contains("credential header api-key"));
    let tags = json!({"custom_tags": [{"tag": "t", "request_header": {"name": "authorization"}}]});
    assert!(in_manager("/tracing", tags).contains("log or trace shows the credential header authorization"));
}

#[test]
fn durations_are_read() {
    let ms = |text: &str| millis(&json!({"d": text}), "/d");
    assert_eq!([ms("0.010s"), ms("600s"), ms("1.5s"), ms("0.000250s")], [Some(10), Some(600_000), Some(1500), Some(0)]);
    assert_eq!([ms("10"), ms("s"), ms("-1s")], [None; 3]);
}
