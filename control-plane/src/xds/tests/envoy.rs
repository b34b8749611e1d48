//! Against a real Envoy: it accepts all of it, says so when it does not, and unadmitted requests end where they should.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::*;
use crate::run::{bootstrap::Bootstrap, child, tools::Tools};

/// A filter that lets everything through and counts its own start, with a label whose value is another label's name.
const DOES_NOTHING: &str = r#"(module
  (import "env" "proxy_define_metric" (func $define (param i32 i32 i32 i32) (result i32)))
  (import "env" "proxy_increment_metric" (func $increment (param i32 i64) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "sluicegate_requests_total.route[chat.completions].model[backend].backend[openai/gpt-4.1].status[200]")
  (func (export "proxy_abi_version_0_2_1"))
  (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 4096))
  (func (export "proxy_on_vm_start") (param i32 i32) (result i32) (i32.const 1))
  (func (export "proxy_on_configure") (param i32 i32) (result i32)
    (drop (call $define (i32.const 0) (i32.const 16) (i32.const 100) (i32.const 8)))
    (drop (call $increment (i32.load (i32.const 8)) (i64.const 1)))
    (i32.const 1)))"#;
const METRIC: &str =
    r#"sluicegate_requests_total{route="chat.completions",model="backend",backend="openai/gpt-4.1",status="200"}"#;
const NODE: &str = "test-node";
const TOKEN: &str = "4711-of-this-node";

struct OneToken;

#[tonic::async_trait]
impl Authenticate for OneToken {
    async fn authenticate(&self, metadata: &tonic::metadata::MetadataMap) -> Result<Lost, Status> {
        let given = metadata.get("authorization").and_then(|v| v.to_str().ok());
        (given == Some(&format!("Bearer {TOKEN}")))
            .then(|| -> Lost { Box::pin(std::future::pending()) })
            .ok_or_else(|| Status::unauthenticated("unknown token"))
    }
}

struct Running {
    publisher: Publisher,
    ready: ClustersReady,
    envoy: Child,
    admin: SocketAddr,
    listen: SocketAddr,
    directory: PathBuf,
    http: reqwest::Client,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn envoy(directory: &Path, bootstrap: &str) -> Child {
    let file = directory.join("bootstrap.yaml");
    std::fs::write(&file, bootstrap).unwrap();
    let log = std::fs::File::create(directory.join("envoy.log")).unwrap();
    let mut command = Command::new(Tools::find().envoy().unwrap());
    command.arg("-c").arg(file).args(["--service-node", NODE, "--service-cluster", "test"]);
    command.args(["--concurrency", "1", "--use-dynamic-base-id", "--log-level", "info"]);
    command.env("SLUICEGATE_NODE_TOKEN", TOKEN).env("SLUICEGATE_SEAL_KEY", "00");
    command.stderr(log.try_clone().unwrap()).stdout(log);
    child::spawn(command, child::Identity::Same, Signal::TERM).unwrap()
}

async fn start() -> Running {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let directory = std::env::temp_dir().join(format!("sluicegate-xds-{}", uuid::Uuid::now_v7()));
    std::fs::create_dir_all(&directory).unwrap();
    let (admin, listen) = (free_port(), free_port());
    let wasm = wat::parse_str(DOES_NOTHING).unwrap();
    let config = ListenerConfig {
        listen,
        access_log: directory.join("access.log").display().to_string(),
        wasm: WasmCode::Inline(wasm.into()),
        trusted_hops: 0,
        tls: None,
    };
    let publisher = Publisher::new(&config);
    let ready = ClustersReady::default();
    let service = publisher.service(ready.clone(), Arc::new(OneToken), CancellationToken::new()).into_server();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let control_plane = socket.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(socket)));
    let envoy = envoy(&directory, &Bootstrap { admin, control_plane, ca: None }.render());
    Running { publisher, ready, envoy, admin, listen, directory, http: reqwest::Client::new() }
}

impl Running {
    async fn admin(&self, path: &str) -> String {
        let url = format!("http://{}{path}", self.admin);
        match self.http.get(url).send().await {
            Ok(response) => response.text().await.unwrap(),
            Err(_) => String::new(),
        }
    }

    /// Envoy has no event for it: asks until the answer holds.
    async fn until(&self, path: &str, holds: impl Fn(&str) -> bool) -> String {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let answer = self.admin(path).await;
            if holds(&answer) {
                return answer;
            }
            let log = || std::fs::read_to_string(self.directory.join("envoy.log")).unwrap_or_default();
            assert!(tokio::time::Instant::now() < deadline, "{path}: {answer}\n{}", log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn ready_for(&self, revision: u64) {
        let mut node = self.ready.watch(NODE);
        let reached = node.wait_for(|ready| *ready == Some(revision));
        tokio::time::timeout(Duration::from_secs(30), reached).await.expect("clusters in use").unwrap();
    }
}

fn mixed(revision: u64) -> Topology {
    let pem = rcgen::generate_simple_self_signed(["p.invalid".to_owned()]).unwrap().cert.pem();
    let at = |backend, host: &str, trust| Upstream {
        position: Position { backend, credential: 1 },
        endpoint: Endpoint { host: host.to_owned(), port: 443, trust },
    };
    let mut topology = Topology { revision, ..Default::default() };
    let own = Trust::Ca { owner: "9".into(), pem };
    topology.add_list(&[at(1, "provider.invalid", Trust::PublicRoots), at(2, "127.0.0.1", Trust::Plaintext)]);
    topology.add_list(&[at(3, "localhost", own.clone()), at(4, "::1", own)]);
    topology
}

#[tokio::test]
async fn envoy_takes_everything_and_says_so() {
    let mut running = start().await;
    let topology = mixed(1);
    running.publisher.publish(topology.clone());
    running.ready_for(1).await;
    running.until("/ready", |answer| answer.contains("LIVE")).await;
    let rejected = running.admin("/stats?filter=update_rejected").await;
    assert!(rejected.lines().all(|line| line.ends_with(": 0")), "{rejected}");
    let dump = running.admin("/config_dump").await;
    assert!(!dump.contains("\"error_state\""), "{dump}");
    assert!(!dump.contains(TOKEN), "the token shows in config_dump");
    for name in topology.lists.keys().chain(topology.upstreams.keys()).map(String::as_str).chain([names::EMPTY_CLUSTER])
    {
        assert!(dump.contains(name), "{name}");
    }
    let metrics = running.admin("/stats/prometheus").await;
    assert!(
        metrics.contains(METRIC),
        "{}",
        metrics.lines().filter(|l| l.contains("sluicegate_requests")).collect::<String>()
    );

    // The same clusters under a new revision need no warming.
    let before = std::time::Instant::now();
    running.publisher.publish(Topology { revision: 2, ..topology });
    running.ready_for(2).await;
    assert!(before.elapsed() < WARMING);
    child::stop(&mut running.envoy, Signal::TERM).await;
}

#[tokio::test]
async fn what_the_gate_did_not_admit_ends_in_a_503_of_ours() {
    let mut running = start().await;
    let topology = mixed(1);
    let list = topology.lists.keys().next().unwrap().clone();
    running.publisher.publish(topology);
    running.until("/ready", |answer| answer.contains("LIVE")).await;
    let url = format!("http://{}/v1/chat/completions?key=secret", running.listen);
    let requests = [
        running.http.get(&url),
        running.http.post(&url).body("{}"),
        // The client's own routing header does not get it to a provider.
        running.http.post(&url).header(names::LIST_HEADER, list).header("authorization", "Bearer secret").body("{}"),
    ];
    for request in requests {
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["content-type"], "application/json");
        assert_eq!(response.headers()["retry-after"], "1");
        let body: serde_json::Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], "gateway_restart");
    }
    child::stop(&mut running.envoy, Signal::TERM).await;
    let log = std::fs::read_to_string(running.directory.join("access.log")).unwrap();
    assert_eq!(log.lines().count(), 3, "{log}");
    assert!(!log.contains("secret"), "{log}");
    assert!(log.lines().all(|line| line.contains(" /v1/chat/completions 503 ") && line.ends_with(" -")), "{log}");
}

#[tokio::test]
async fn a_refused_push_changes_nothing_and_the_next_one_heals() {
    let mut running = start().await;
    let mut topology = mixed(1);
    running.publisher.publish(topology.clone());
    running.ready_for(1).await;
    running.until("/ready", |answer| answer.contains("LIVE")).await;
    let mut bad = Topology { revision: 2, ..topology.clone() };
    bad.add_list(&[upstream(8, "")]);
    running.publisher.publish(bad);
    running.until("/stats?filter=cluster_manager.cds.update_rejected", |answer| answer.trim().ends_with(": 1")).await;
    assert_eq!(*running.ready.watch(NODE).borrow(), Some(1), "a policy that names the bad list stays back");
    topology.revision = 3;
    topology.add_list(&[upstream(8, "provider.invalid")]);
    running.publisher.publish(topology);
    running.ready_for(3).await;
    child::stop(&mut running.envoy, Signal::TERM).await;
}
