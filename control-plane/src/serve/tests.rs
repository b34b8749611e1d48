//! A whole control plane on a Postgres of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::run::postgres::{Place, Postgres};
use crate::run::tools::Tools;
use crate::tls::Generated;
use crate::xds::WasmCode;

struct Database {
    server: Postgres,
    directory: PathBuf,
}

impl Database {
    async fn start() -> Self {
        let directory = std::env::temp_dir().join(format!("sluicegate-serve-{}", uuid::Uuid::now_v7()));
        let listen = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let password = Zeroizing::new("of-the-test".to_owned());
        let place = Place { directory: directory.clone(), listen, password, settings: Vec::new() };
        Self { server: Postgres::start(&Tools::find(), &place).await.unwrap(), directory }
    }

    fn config(&self) -> Config {
        let keyring = self.directory.join("keyring");
        if !keyring.exists() {
            Keyring::create(&keyring).unwrap();
        }
        config(self.server.url(), &keyring)
    }

    async fn stop(self) {
        self.server.stop().await;
        std::fs::remove_dir_all(self.directory).unwrap();
    }
}

fn config(url: &str, keyring: &Path) -> Config {
    let any = "127.0.0.1:0".parse().unwrap();
    Config {
        database_url: Zeroizing::new(url.to_owned()),
        keyring: keyring.to_owned(),
        seeds: Seeds::default(),
        grpc: any,
        grpc_transport: Transport::Plaintext,
        http: any,
        http_transport: Transport::Plaintext,
        listener: ListenerConfig {
            listen: any,
            access_log: "/dev/null".to_owned(),
            wasm: WasmCode::Inline(bytes::Bytes::from_static(b"\0asm")),
            trusted_hops: 0,
            tls: None,
        },
    }
}

async fn status(client: &reqwest::Client, url: String) -> u16 {
    client.get(url).send().await.unwrap().status().as_u16()
}

#[tokio::test]
async fn serves_by_tls_stays_ready_without_its_database_and_stops() {
    tls::install_provider();
    let database = Database::start().await;
    let generated = Generated::new(&["localhost", "127.0.0.1"]).unwrap();
    let tls = Transport::Tls(generated.identity);
    let plane = ControlPlane::start(Config { grpc_transport: tls.clone(), http_transport: tls, ..database.config() })
        .await
        .unwrap();
    let ca = reqwest::Certificate::from_pem(generated.ca.as_bytes()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([ca]).build().unwrap();
    let http = plane.http;
    for path in ["healthz", "readyz", "metrics", "openapi.json"] {
        assert_eq!(status(&client, format!("https://localhost:{}/{path}", http.port())).await, 200, "{path}");
    }
    assert_eq!(status(&client, format!("https://{http}/v1/providers")).await, 401);
    let untrusting = reqwest::Client::builder().tls_certs_only([]).build().unwrap();
    assert!(untrusting.get(format!("https://{http}/healthz")).send().await.is_err());

    // An Envoy without a token is told so.
    let channel = tonic::transport::Endpoint::from_shared(format!("https://localhost:{}", plane.grpc.port())).unwrap();
    let trust =
        tonic::transport::ClientTlsConfig::new().ca_certificate(tonic::transport::Certificate::from_pem(&generated.ca));
    let channel = channel.tls_config(trust).unwrap().connect().await.unwrap();
    let mut dataplane = crate::proto::data_plane_client::DataPlaneClient::new(channel);
    let refused = dataplane.sync(tokio_stream::empty()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{refused}");

    database.stop().await;
    assert_eq!(status(&client, format!("https://{http}/readyz")).await, 200);
    let stopped = tokio::time::timeout(DRAIN + Duration::from_secs(5), plane.stop()).await;
    stopped.expect("in time").unwrap();
    assert!(client.get(format!("https://{http}/readyz")).send().await.is_err());
}

#[tokio::test]
async fn what_is_wrong_is_said_with_the_way_out() {
    tls::install_provider();
    let database = Database::start().await;
    let message =
        async |config: Config| format!("{:#}", anyhow::Error::from(ControlPlane::start(config).await.unwrap_err()));
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let holder = TcpListener::bind(taken).await.unwrap();
    let said = message(Config { http: taken, ..database.config() }).await;
    assert!(said.contains(&taken.to_string()) && said.contains("--http"), "{said}");
    let said = message(Config { grpc: taken, ..database.config() }).await;
    assert!(said.contains("--grpc"), "{said}");
    drop(holder);

    let said = message(Config { keyring: "/nowhere/keyring".into(), ..database.config() }).await;
    assert!(said.contains("/nowhere/keyring"), "{said}");
    let wrong = database.server.url().replace("of-the-test", "another-secret");
    let said = message(Config { database_url: Zeroizing::new(wrong), ..database.config() }).await;
    assert!(said.contains("DATABASE_URL") && !said.contains("another-secret"), "{said}");

    ControlPlane::start(database.config()).await.unwrap().stop().await.unwrap();
    let other = database.directory.join("another-keyring");
    Keyring::create(&other).unwrap();
    let said = message(Config { keyring: other, ..database.config() }).await;
    assert!(said.contains("keyring"), "{said}");
    database.stop().await;
}
