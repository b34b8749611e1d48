//! An Envoy that is somebody else's, and the pieces that `sluicegate attach` renders for it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use scripted_provider::TestCa;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::client::{Call, Http, send};
use crate::echo::Echo;
use crate::envoy::{Envoy, EnvoyConfig};
use crate::run::eventually;
use crate::scene::Scene;
use crate::stack::{NODE_TOKEN, SEAL_KEY, Stack};
use crate::tools;

/// What they call the cluster that reaches the stack's provider.
pub const CLUSTER: &str = "their|models";

/// The stack whose control plane and provider all attached Envoys of the tests use. Not the one that other tests share:
/// these Envoys come and go, and some never get a policy.
pub async fn stack() -> &'static Stack {
    static STACK: OnceCell<Stack> = OnceCell::const_new();
    STACK.get_or_init(Stack::start).await
}

/// The pieces of one rendering. Tests break them one by one.
#[derive(Clone, Debug)]
pub struct Pieces {
    /// All of it, an Envoy configuration of its own.
    pub whole: Value,
    pub body_limit: Value,
    pub route: Option<Value>,
    pub gate: Option<Value>,
    pub adapter: Option<Value>,
    pub cluster: Value,
    pub secret: Value,
    pub stats: Value,
}

impl Pieces {
    /// Of the real command, with these further arguments.
    pub fn render(stack: &Stack, more: &[&str]) -> Self {
        let folder = tools::folder("attach");
        let (wasm, control_plane) = (folder.join("filter.wasm"), stack.control.grpc().to_string());
        let cluster = format!("scripted={CLUSTER}");
        let mut command = Command::new(tools::built("sluicegate"));
        command.args(["attach", "--to", "static", "--cluster", &cluster, "--control-plane", &control_plane]);
        command.arg("--wasm").arg(&wasm).arg("--write-wasm").arg(&wasm).args(more);
        let out = command.output().expect("the command runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        Self::read(&String::from_utf8(out.stdout).expect("text"))
    }

    pub fn read(text: &str) -> Self {
        let whole: Value = serde_norway::from_str(text).expect("YAML");
        let at = |path: &str| whole.pointer(path).unwrap_or_else(|| panic!("{path} in {whole:#}")).clone();
        let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
        let host = format!("{manager}/route_config/virtual_hosts/0");
        Self {
            body_limit: at(&format!("{host}/request_body_buffer_limit")),
            route: Some(at(&format!("{host}/routes/0"))),
            gate: Some(at(&format!("{manager}/http_filters/0"))),
            adapter: Some(at(&format!("{manager}/http_filters/1/typed_config/upstream_http_filters/0"))),
            cluster: at("/static_resources/clusters/0"),
            secret: at("/static_resources/secrets/0"),
            stats: at("/stats_config"),
            whole,
        }
    }

    /// The plugin's part of an entry.
    pub fn plugin(entry: &mut Option<Value>) -> &mut serde_json::Map<String, Value> {
        let plugin = entry.as_mut().and_then(|entry| entry.pointer_mut("/typed_config/config"));
        plugin.and_then(Value::as_object_mut).expect("a plugin's entry")
    }
}

/// An Envoy configuration of somebody's own: two listeners, one of them TLS, filters and routes that are no business of
/// ours. Always on the same ports.
#[derive(Debug)]
pub struct Theirs {
    pub app: Echo,
    pub ca: TestCa,
    models: SocketAddr,
    plain: u16,
    tls: u16,
    admin: u16,
    folder: PathBuf,
}

impl Theirs {
    /// `models` is where their cluster [`CLUSTER`] leads.
    pub async fn new(models: SocketAddr) -> Self {
        let (folder, ca) = (tools::folder("theirs"), TestCa::new().expect("a CA"));
        let (certificate, key) = ca.identity(&["localhost"]).expect("a certificate");
        std::fs::write(folder.join("cert.pem"), certificate).expect("the folder is writable");
        std::fs::write(folder.join("key.pem"), key).expect("the folder is writable");
        let [plain, tls, admin] = [(); 3].map(|()| tools::free_port());
        Self { app: Echo::start().await, ca, models, plain, tls, admin, folder }
    }

    pub fn tls_port(&self) -> u16 {
        self.tls
    }

    /// An Envoy with it, and the pieces in it if there are any.
    pub async fn envoy(&self, pieces: Option<&Pieces>) -> Envoy {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let env = [("SLUICEGATE_NODE_TOKEN", NODE_TOKEN), ("SLUICEGATE_SEAL_KEY", SEAL_KEY)];
        Envoy::start(EnvoyConfig {
            program: tools::envoy(),
            // JSON is YAML.
            bootstrap: format!("{:#}", self.bootstrap(pieces)),
            listen: local(self.plain),
            admin: local(self.admin),
            env: env.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec(),
            folder: tools::folder("their-envoy"),
            concurrency: 1,
        })
        .await
    }

    fn bootstrap(&self, pieces: Option<&Pieces>) -> Value {
        let mut clusters = vec![
            cluster("app", self.app.addr(), false),
            cluster("app-h2", self.app.addr(), true),
            cluster(CLUSTER, self.models, false),
        ];
        clusters.extend(pieces.map(|pieces| pieces.cluster.clone()));
        let secrets: Vec<Value> = pieces.map(|pieces| pieces.secret.clone()).into_iter().collect();
        json!({
            "admin": {"address": address(self.admin)},
            "static_resources": {
                "listeners": [self.listener(self.plain, None, pieces), self.listener(self.tls, Some(&self.folder), pieces)],
                "clusters": clusters,
                "secrets": secrets,
            },
            "stats_config": pieces.map(|pieces| pieces.stats.clone()),
        })
    }

    fn listener(&self, port: u16, tls: Option<&Path>, pieces: Option<&Pieces>) -> Value {
        let mut chain = json!({"filters": [{
            "name": "envoy.filters.network.http_connection_manager", "typed_config": manager(port, pieces),
        }]});
        if let (Some(folder), Some(chain)) = (tls, chain.as_object_mut()) {
            let file = |name: &str| json!({"filename": folder.join(name)});
            let certificate = json!({"certificate_chain": file("cert.pem"), "private_key": file("key.pem")});
            let context = json!({
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "common_tls_context": {"tls_certificates": [certificate], "alpn_protocols": ["h2", "http/1.1"]},
            });
            chain.insert(
                "transport_socket".into(),
                json!({"name": "envoy.transport_sockets.tls", "typed_config": context}),
            );
        }
        json!({"name": format!("theirs-{port}"), "address": address(port), "filter_chains": [chain]})
    }
}

/// Waits until this Envoy knows the scene's key and serves by a policy. Asks for models only: no body has passed it.
pub async fn knows(envoy: &Envoy, scene: &Scene<'_>) {
    eventually("the attached Envoy is ready", Duration::from_secs(30), || async {
        ensure!(envoy.process().is_running(), "Envoy ended:\n{}", envoy.process().log_tail(30));
        let call = Call::get("/v1/models").bearer(&scene.key.secret);
        let reply = send(Http::H1, envoy.addr(), call).await?;
        ensure!(reply.status == 200, "{}", reply.status);
        Ok(())
    })
    .await;
}

fn manager(port: u16, pieces: Option<&Pieces>) -> Value {
    let mut routes: Vec<Value> = pieces.and_then(|pieces| pieces.route.clone()).into_iter().collect();
    let to = |prefix: &str, cluster: &str| json!({"match": {"prefix": prefix}, "route": {"cluster": cluster}});
    routes.extend([
        to("/h2/", "app-h2"),
        json!({"match": {"prefix": "/old/"}, "route": {"cluster": "app", "prefix_rewrite": "/new/"},
            "request_headers_to_add": [{"header": {"key": "x-old", "value": "1"}}]}),
        json!({"match": {"prefix": "/mirrored/"}, "route": {"cluster": "app", "request_mirror_policies": [{"cluster": "app-h2"}]}}),
        to("/", "app"),
    ]);
    let mut filters = their_filters();
    filters.extend(pieces.and_then(|pieces| pieces.gate.clone()));
    let codec = json!({"name": "envoy.filters.http.upstream_codec", "typed_config":
        {"@type": "type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec"}});
    let mut router = json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"});
    if let (Some(adapter), Some(router)) = (pieces.and_then(|p| p.adapter.clone()), router.as_object_mut()) {
        router.insert("upstream_http_filters".into(), json!([adapter, codec]));
    }
    filters.push(json!({"name": "envoy.filters.http.router", "typed_config": router}));
    let mut host = json!({"name": "theirs", "domains": ["*"], "routes": routes, "typed_per_filter_config": {
        "envoy.filters.http.cors": {"@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy",
            "allow_origin_string_match": [{"exact": "https://their.example"}], "allow_methods": "GET, POST"},
    }});
    if let (Some(pieces), Some(host)) = (pieces, host.as_object_mut()) {
        host.insert("request_body_buffer_limit".into(), pieces.body_limit.clone());
    }
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": format!("theirs-{port}"),
        "http_protocol_options": {"enable_trailers": true},
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "generate_request_id": false,
        "use_remote_address": true,
        "route_config": {"virtual_hosts": [host]},
        "http_filters": filters,
    })
}

fn their_filters() -> Vec<Value> {
    let lua = r#"
        function envoy_on_request(handle) handle:headers():add("x-lua", "request") end
        function envoy_on_response(handle) handle:headers():add("x-lua", "response") end
    "#;
    let mutation = json!({"append": {"header": {"key": "x-mutated", "value": "1"}}});
    vec![
        json!({"name": "envoy.filters.http.cors", "typed_config":
            {"@type": "type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors"}}),
        json!({"name": "envoy.filters.http.lua", "typed_config":
            {"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
             "default_source_code": {"inline_string": lua}}}),
        json!({"name": "envoy.filters.http.header_mutation", "typed_config":
            {"@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
             "mutations": {"request_mutations": [mutation], "response_mutations": [mutation]}}}),
    ]
}

fn cluster(name: &str, to: SocketAddr, h2: bool) -> Value {
    let endpoint = json!({"endpoint": {"address": address(to.port())}});
    let protocol = if h2 { "http2_protocol_options" } else { "http_protocol_options" };
    let options = if h2 { json!({}) } else { json!({"enable_trailers": true}) };
    json!({
        "name": name,
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {protocol: options},
        }},
    })
}

fn address(port: u16) -> Value {
    json!({"socket_address": {"address": "127.0.0.1", "port_value": port}})
}
