//! A migrated database with an Admin API over it.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Method, Request, StatusCode, header};
use prost::Message as _;
use serde_json::{Value, json};
use sluicegate::admin::{self, Service};
use sluicegate::credentials::{Keyring, Secret};
use sluicegate::store::{Seeds, Store};
use sluicegate::tls;
use sluicegate_core::proto::policy::Snapshot;
use sqlx::PgPool;
use tower::Service as _;

pub const ADMIN_TOKEN: &str = "admin-token-of-the-tests";
pub const PROVIDER_SECRET: &str = "sk-provider-canary-7c1d";

pub struct Gate {
    pub store: Store,
    pub keyring: Arc<Keyring>,
    /// For looking behind the API.
    pub pool: PgPool,
    pub url: String,
    router: Router,
}

/// The counters of the `revision` row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Counters {
    pub revision: i64,
    pub policy: i64,
    pub keys: i64,
    pub blocks: i64,
    pub credentials: i64,
}

impl Gate {
    pub async fn new() -> Self {
        let url = test_postgres::database().await.url;
        let store = Store::connect(&url).await.unwrap();
        let keyring = Arc::new(Keyring::generate().unwrap());
        store.check_keyring(&keyring).await.unwrap();
        let seeds = Seeds { admin_token: Some(Secret::new(ADMIN_TOKEN.to_owned())), ..Seeds::default() };
        store.seed(&seeds, &keyring).await.unwrap();
        let router = admin::router(Arc::new(Service::new(store.clone(), Arc::clone(&keyring))));
        Self { store, keyring, pool: PgPool::connect(&url).await.unwrap(), url, router }
    }

    /// With a provider that has a stored credential, a priced model and an org.
    pub async fn stocked() -> Self {
        let gate = Self::new().await;
        let openai = json!({"name": "openai", "dialect": "openai", "base_url": "https://api.openai.com/v1"});
        gate.created("/v1/providers", openai).await;
        let credential = json!({"name": "main", "provider": "openai", "secret": PROVIDER_SECRET});
        gate.created("/v1/credentials", credential).await;
        let model = json!({"name": "gpt-4o", "targets": [{"provider": "openai", "model": "gpt-4o-2024-11-20"}]});
        gate.created("/v1/models", model).await;
        let price = json!({"provider": "openai", "model": "gpt-4o-2024-11-20", "input": "2.50", "output": "10.00"});
        gate.created("/v1/prices", price).await;
        gate.created("/v1/orgs", json!({"name": "acme"})).await;
        gate
    }

    /// Serves the API on a port of its own while the test runs; returns its URL.
    pub async fn served(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, self.router.clone()).into_future());
        url
    }

    /// The same over TLS, with a certificate of its own; returns its URL and whom to trust, PEM.
    pub async fn served_with_tls(&self) -> (String, String) {
        tls::install_provider();
        let generated = tls::Generated::new(&["127.0.0.1"]).unwrap();
        let config = tls::Transport::Tls(generated.identity).http().await.unwrap().unwrap();
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let url = format!("https://{}", socket.local_addr().unwrap());
        let server = axum_server::from_tcp_rustls(socket, config).unwrap();
        tokio::spawn(server.serve(self.router.clone().into_make_service()));
        (url, generated.ca)
    }

    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        self.call_as(Some(ADMIN_TOKEN), method, path, body).await
    }

    pub async fn call_as(
        &self,
        token: Option<&str>,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = body.map_or_else(Body::empty, |json| Body::from(json.to_string()));
        let response = self.router.clone().call(request.body(body).unwrap()).await.unwrap();
        let status = response.status();
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).unwrap() };
        (status, body)
    }

    pub async fn created(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.call(Method::POST, path, Some(body)).await;
        assert_eq!(status, StatusCode::CREATED, "{path}: {answer}");
        answer
    }

    pub async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.call(Method::POST, path, Some(body)).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
        answer
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.call(Method::GET, path, None).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
        answer
    }

    pub async fn patched(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.call(Method::PATCH, path, Some(body)).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
        answer
    }

    pub async fn deleted(&self, path: &str) {
        let (status, answer) = self.call(Method::DELETE, path, None).await;
        assert_eq!(status, StatusCode::NO_CONTENT, "{path}: {answer}");
    }

    /// Sends what must be refused; returns the code and the field.
    pub async fn refused(&self, method: Method, path: &str, body: Value) -> (String, String) {
        let before = self.counters().await;
        let (status, answer) = self.call(method, path, Some(body)).await;
        assert!(status.is_client_error(), "{path}: {status} {answer}");
        assert_eq!(before, self.counters().await, "a refused write left something");
        let text = |field: &str| answer["error"][field].as_str().unwrap_or_default().to_owned();
        assert!(!text("message").is_empty(), "{answer}");
        (text("code"), text("field"))
    }

    pub async fn counters(&self) -> Counters {
        sqlx::query_as("select revision, policy, keys, blocks, credentials from revision")
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }

    pub async fn snapshot(&self) -> Snapshot {
        let encoded: Vec<u8> = sqlx::query_scalar("select snapshot from policy order by revision desc limit 1")
            .fetch_one(&self.pool)
            .await
            .unwrap();
        Snapshot::decode(encoded.as_slice()).unwrap()
    }

    /// Prefixes in the change log at a revision, sorted.
    pub async fn key_changes(&self, revision: i64) -> Vec<i32> {
        sqlx::query_scalar("select prefix from key_change where revision = $1 order by prefix")
            .bind(revision)
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }
}
