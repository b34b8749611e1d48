//! LDS: the one listener. It depends on the build and its own settings alone, never on policy: a changed listener would
//! drain, and cut every stream older than the drain time.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::config::accesslog::v3 as accesslog;
use envoy_types::pb::envoy::config::common::mutation_rules::v3 as mutation;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::config::listener::v3::{self as listener, Listener};
use envoy_types::pb::envoy::extensions::access_loggers::file::v3 as file_log;
use envoy_types::pb::envoy::extensions::access_loggers::filters::cel::v3::ExpressionFilter;
use envoy_types::pb::envoy::extensions::filters::http::router::v3::Router;
use envoy_types::pb::envoy::extensions::filters::http::upstream_codec::v3::UpstreamCodec;
use envoy_types::pb::envoy::extensions::filters::http::wasm::v3::Wasm;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use envoy_types::pb::envoy::extensions::http::early_header_mutation::header_mutation::v3 as early;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use envoy_types::pb::envoy::extensions::wasm::v3 as wasm;
use envoy_types::pb::google::protobuf as pb;
use envoy_types::util::pack_any;
use sluicegate_core::plugin::{Attached, PluginConfig, Role};
use sluicegate_core::policy::names;

use super::route::{self, BUFFER_LIMIT, CATCH_ALL, STREAM_IDLE};
use super::{jwt, part, secret};

/// Name of the listener.
pub const NAME: &str = "sluicegate";

/// The settings of the listener. The same for every Envoy of this control plane.
#[derive(Clone, Debug)]
pub struct ListenerConfig {
    pub listen: SocketAddr,
    /// A path on the Envoy's machine.
    pub access_log: String,
    pub wasm: WasmCode,
    /// Proxies in front whose `x-forwarded-for` is believed.
    pub trusted_hops: u32,
    /// Clients speak TLS with this; `None`: in plain text.
    pub tls: Option<ListenerTls>,
}

/// A certificate for clients, as files on the Envoy's machine: PEM, chain and key. Read again when something in the
/// certificate's folder is moved, as Kubernetes and certificate tools renew them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerTls {
    pub certificate: String,
    pub key: String,
}

/// Where an Envoy finds the filter.
#[derive(Clone, Debug)]
pub enum WasmCode {
    /// A path on the Envoy's machine.
    File(String),
    /// Sent along.
    Inline(Bytes),
}

/// One line per request. The last field is the filter's record of it, which `sluicegate reconcile` reads back, with the
/// word before it where the VM died; no field can show a credential: no header but the method, and the path without its
/// query (`?key=`).
const ACCESS_LOG: &str = "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)% %REQ(:METHOD)% %PATH(NQ)% %RESPONSE_CODE% \
%DURATION% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %BYTES_RECEIVED% %BYTES_SENT% \
counted=%RESPONSE_CODE%,%UPSTREAM_WIRE_BYTES_SENT%,%UPSTREAM_WIRE_BYTES_RECEIVED% %FILTER_STATE(wasm.sluicegate:PLAIN)%\n";

pub fn listener(config: &ListenerConfig) -> Listener {
    let manager = listener::Filter {
        name: "envoy.filters.network.http_connection_manager".to_owned(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(pack_any(connection_manager(config)))),
    };
    Listener {
        name: NAME.to_owned(),
        address: part::socket_address(&config.listen.ip().to_string(), config.listen.port()),
        filter_chains: vec![listener::FilterChain {
            filters: vec![manager],
            transport_socket: config.tls.as_ref().map(|_| transport_socket()),
            ..Default::default()
        }],
        // Bounds what the adapter may hold back of a response, and request bodies that wait in the gate.
        per_connection_buffer_limit_bytes: part::u32(BUFFER_LIMIT),
        ..Default::default()
    }
}

/// The certificate comes apart: the listener stays as it is when that is renewed.
fn transport_socket() -> core::TransportSocket {
    let context = tls::DownstreamTlsContext {
        common_tls_context: Some(tls::CommonTlsContext {
            tls_certificate_sds_secret_configs: vec![tls::SdsSecretConfig {
                name: secret::LISTENER.to_owned(),
                sds_config: part::ads(),
            }],
            alpn_protocols: vec!["h2".to_owned(), "http/1.1".to_owned()],
            ..Default::default()
        }),
        ..Default::default()
    };
    core::TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(pack_any(context))),
    }
}

fn connection_manager(config: &ListenerConfig) -> hcm::HttpConnectionManager {
    hcm::HttpConnectionManager {
        codec_type: hcm::http_connection_manager::CodecType::Auto.into(),
        stat_prefix: "sluicegate".to_owned(),
        route_specifier: Some(hcm::http_connection_manager::RouteSpecifier::RouteConfig(route::table())),
        http_filters: vec![jwt::filter(), plugin(config, names::GATE, Role::Gate), router(config)],
        access_log: vec![access_log(config)],
        // Envoy's default of 5 minutes is shorter than a reasoning model may think.
        stream_idle_timeout: part::duration(STREAM_IDLE),
        early_header_mutation_extensions: vec![without_list_header()],
        local_reply_config: Some(local_replies()),
        // So that the gate is asked and can answer in a way that makes clients fall back; Envoy's own is an empty 403.
        upgrade_configs: vec![hcm::http_connection_manager::UpgradeConfig {
            upgrade_type: "websocket".to_owned(),
            ..Default::default()
        }],
        use_remote_address: part::bool(true),
        xff_num_trusted_hops: config.trusted_hops,
        normalize_path: part::bool(true),
        merge_slashes: true,
        ..Default::default()
    }
}

/// Removes the client's own routing header. Only this early does it come before the first match of a route.
fn without_list_header() -> core::TypedExtensionConfig {
    let remove = mutation::HeaderMutation {
        action: Some(mutation::header_mutation::Action::Remove(names::LIST_HEADER.to_owned())),
    };
    part::extension(
        "envoy.http.early_header_mutation.header_mutation",
        early::HeaderMutation { mutations: vec![remove] },
    )
}

/// The adapter stands once, here: it runs for every attempt, whichever cluster that goes to.
fn router(config: &ListenerConfig) -> hcm::HttpFilter {
    let codec = part::http_filter("envoy.filters.http.upstream_codec", UpstreamCodec::default());
    let router = Router {
        upstream_http_filters: vec![plugin(config, names::ADAPTER, Role::Adapter), codec],
        // What Envoy tells upstreams about timeouts is not a provider's business.
        suppress_envoy_headers: true,
        ..Default::default()
    };
    part::http_filter("envoy.filters.http.router", router)
}

/// Gate and adapter are one VM: same `vm_id`, same VM configuration, same code.
fn plugin(config: &ListenerConfig, name: &str, role: Role) -> hcm::HttpFilter {
    let entry = plugin_config(role, None);
    let plugin = wasm::PluginConfig {
        name: name.to_owned(),
        root_id: name.to_owned(),
        configuration: part::any(pb::StringValue { value: entry.to_json() }),
        // Without it a filter that pauses at the headers never sees the body, and the request hangs.
        allow_on_headers_stop_iteration: part::bool(true),
        // A trap must neither open the gate (FAIL_OPEN) nor shut it for good (FAIL_CLOSED, the default).
        failure_policy: wasm::FailurePolicy::FailReload.into(),
        reload_config: Some(wasm::ReloadConfig {
            // By default a worker answers 503 for a second before its VM is made anew.
            backoff: Some(core::BackoffStrategy {
                base_interval: part::duration(Duration::from_millis(10)),
                max_interval: part::duration(Duration::from_millis(100)),
            }),
        }),
        vm: Some(wasm::plugin_config::Vm::VmConfig(vm(&config.wasm))),
        ..Default::default()
    };
    part::http_filter("envoy.filters.http.wasm", Wasm { config: Some(plugin) })
}

/// What an entry of ours tells the filter; `attached` where it stands in somebody else's configuration.
pub fn plugin_config(role: Role, attached: Option<Attached>) -> PluginConfig {
    PluginConfig { role, cluster: names::CONTROL_PLANE_CLUSTER.to_owned(), version: build_version(), attached }
}

/// Rises with each release; two replicas of one release render the same listener.
fn build_version() -> u64 {
    let parts = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH")];
    parts.iter().fold(0, |version, part| version * 1_000_000 + part.parse::<u64>().unwrap_or_default())
}

fn vm(code: &WasmCode) -> wasm::VmConfig {
    let specifier = match code {
        WasmCode::File(path) => core::data_source::Specifier::Filename(path.clone()),
        WasmCode::Inline(bytes) => core::data_source::Specifier::InlineBytes(bytes.to_vec()),
    };
    let source = core::DataSource { specifier: Some(specifier), ..Default::default() };
    wasm::VmConfig {
        // An empty one would share its data with every other plugin that has none.
        vm_id: names::VM_ID.to_owned(),
        runtime: "envoy.wasm.runtime.v8".to_owned(),
        code: Some(core::AsyncDataSource { specifier: Some(core::async_data_source::Specifier::Local(source)) }),
        // Environment values do not show in `config_dump`.
        environment_variables: Some(wasm::EnvironmentVariables {
            host_env_keys: vec![names::SEAL_KEY_ENV.to_owned()],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn access_log(config: &ListenerConfig) -> accesslog::AccessLog {
    use file_log::file_access_log::AccessLogFormat;
    let format = core::SubstitutionFormatString {
        format: Some(core::substitution_format_string::Format::TextFormatSource(part::inline(ACCESS_LOG))),
        ..Default::default()
    };
    let file = file_log::FileAccessLog {
        path: config.access_log.clone(),
        access_log_format: Some(AccessLogFormat::LogFormat(format)),
    };
    accesslog::AccessLog {
        name: "envoy.access_loggers.file".to_owned(),
        config_type: Some(accesslog::access_log::ConfigType::TypedConfig(pack_any(file))),
        ..Default::default()
    }
}

/// Gives the ends that no filter can answer any more (its VM died) a body that clients understand.
fn local_replies() -> hcm::LocalReplyConfig {
    let ends = ["stream_idle_timeout", "max_duration_timeout", "no_healthy_upstream"]
        .map(|details| format!("response.code_details == '{details}'"))
        .join(" || ");
    let expression = format!(
        "response.code_details == 'wasm_fail_stream' || (xds.route_name.startsWith('{CATCH_ALL}') && ({ends}))"
    );
    let filter = accesslog::ExtensionFilter {
        name: "envoy.access_loggers.extension_filters.cel".to_owned(),
        config_type: Some(accesslog::extension_filter::ConfigType::TypedConfig(pack_any(ExpressionFilter {
            expression,
            ..Default::default()
        }))),
    };
    let body = serde_json::json!({ "error": {
        "message": "gateway restarted, try again", "type": "server_error", "param": null, "code": "gateway_restart",
    }});
    let retry_after = core::HeaderValueOption {
        header: Some(core::HeaderValue { key: "retry-after".to_owned(), value: "1".to_owned(), ..Default::default() }),
        append_action: core::header_value_option::HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..Default::default()
    };
    let restarted = hcm::ResponseMapper {
        filter: Some(accesslog::AccessLogFilter {
            filter_specifier: Some(accesslog::access_log_filter::FilterSpecifier::ExtensionFilter(filter)),
        }),
        status_code: part::u32(503),
        body_format_override: Some(core::SubstitutionFormatString {
            content_type: "application/json".to_owned(),
            format: Some(core::substitution_format_string::Format::TextFormatSource(part::inline(body.to_string()))),
            ..Default::default()
        }),
        headers_to_add: vec![retry_after],
        ..Default::default()
    };
    hcm::LocalReplyConfig { mappers: vec![restarted], ..Default::default() }
}
