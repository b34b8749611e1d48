//! Envoys without Sluicegate: the same listener, one route and one cluster, with and without a pair of empty filters.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sluicegate_tests::envoy::{Envoy, EnvoyConfig};
use sluicegate_tests::tools;

const NOOP: &str = include_str!("noop.wat");
/// As Sluicegate's, without the field of its own.
const ACCESS_LOG: &str = "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)% %REQ(:METHOD)% %PATH(NQ)% %RESPONSE_CODE% %DURATION% \
%RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %BYTES_RECEIVED% %BYTES_SENT% \
counted=%RESPONSE_CODE%,%UPSTREAM_WIRE_BYTES_SENT%,%UPSTREAM_WIRE_BYTES_RECEIVED%\n";
const BUFFER: u32 = 64 << 20;

/// Envoy as a plain reverse proxy.
pub async fn bare(upstream: SocketAddr) -> Envoy {
    start("bare", upstream, None).await
}

/// The same with a filter in the listener's chain and in the router's, of one VM, that do nothing.
pub async fn noop(upstream: SocketAddr) -> Result<Envoy> {
    let module = tools::folder("noop").join("noop.wasm");
    std::fs::write(&module, wat::parse_str(NOOP).context("noop.wat")?)?;
    Ok(start("noop", upstream, Some(&module)).await)
}

async fn start(name: &str, upstream: SocketAddr, module: Option<&Path>) -> Envoy {
    let local = || SocketAddr::from(([127, 0, 0, 1], tools::free_port()));
    let (listen, admin, folder) = (local(), local(), tools::folder(name));
    let bootstrap = json!({
        "admin": {"address": address(admin)},
        "static_resources": {
            "listeners": [listener(listen, &folder.join("access.log"), module)],
            "clusters": [cluster(upstream)],
        },
    });
    let (program, bootstrap) = (tools::envoy(), bootstrap.to_string());
    Envoy::start(EnvoyConfig { program, bootstrap, listen, admin, env: Vec::new(), folder, concurrency: 1 }).await
}

fn listener(listen: SocketAddr, access_log: &Path, module: Option<&Path>) -> Value {
    let typed = "type.googleapis.com/envoy.extensions";
    let codec = json!({
        "name": "envoy.filters.http.upstream_codec",
        "typed_config": {"@type": format!("{typed}.filters.http.upstream_codec.v3.UpstreamCodec")},
    });
    let filters = |name, last| -> Vec<Value> { module.map(|m| plugin(name, m)).into_iter().chain([last]).collect() };
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": format!("{typed}.filters.http.router.v3.Router"),
            "suppress_envoy_headers": true,
            "upstream_http_filters": filters("adapter", codec),
        },
    });
    let log = json!({
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": format!("{typed}.access_loggers.file.v3.FileAccessLog"),
            "path": access_log,
            "log_format": {"text_format_source": {"inline_string": ACCESS_LOG}},
        },
    });
    let manager = json!({
        "@type": format!("{typed}.filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "bench",
        "route_config": routes(),
        "http_filters": filters("gate", router),
        "access_log": [log],
        "stream_idle_timeout": "600s",
        "use_remote_address": true,
        "normalize_path": true,
        "merge_slashes": true,
    });
    let filter = json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": manager});
    json!({
        "name": "bench",
        "address": address(listen),
        "per_connection_buffer_limit_bytes": BUFFER,
        "filter_chains": [{"filters": [filter]}],
    })
}

fn routes() -> Value {
    let action =
        json!({"cluster": "provider", "timeout": "0s", "max_stream_duration": {"max_stream_duration": "3600s"}});
    let route = json!({"match": {"prefix": "/"}, "route": action});
    json!({"virtual_hosts": [{"name": "bench", "domains": ["*"], "routes": [route]}]})
}

fn plugin(name: &str, module: &Path) -> Value {
    json!({
        "name": "envoy.filters.http.wasm",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
            "config": {
                "name": name,
                "root_id": name,
                "allow_on_headers_stop_iteration": true,
                "failure_policy": "FAIL_RELOAD",
                "vm_config": {
                    "vm_id": "noop",
                    "runtime": "envoy.wasm.runtime.v8",
                    "code": {"local": {"filename": module}},
                },
            },
        },
    })
}

fn cluster(upstream: SocketAddr) -> Value {
    let many = 1_000_000;
    json!({
        "name": "provider",
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": "provider",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(upstream)}}]}],
        },
        "circuit_breakers": {"thresholds": [{
            "max_connections": many, "max_pending_requests": many, "max_requests": many, "max_retries": many,
        }]},
    })
}

fn address(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}
