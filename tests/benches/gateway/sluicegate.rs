//! Sluicegate as it ships: control plane, Postgres, an Envoy with one worker; one credential, priced models.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use bytes::Bytes;
use scripted_provider::Provider;
use serde_json::json;
use sluicegate_tests::admin::NewKey;
use sluicegate_tests::stack::{Stack, Wanted};
use sluicegate_tests::{Call, Http, eventually, send};

use crate::chat;

const ORG: &str = "bench";
pub const WHOLE: &str = "bench-whole";
pub const STREAM: &str = "bench-stream";

#[derive(Debug)]
pub struct Sluicegate {
    pub stack: Stack,
    pub key: NewKey,
    keys: i32,
}

impl Sluicegate {
    /// `whole` and `stream` are behind the models [`WHOLE`] and [`STREAM`]. `filter`: another than the built-in one.
    pub async fn start(whole: &Provider, stream: &Provider, filter: Option<PathBuf>) -> Result<Self> {
        let stack = Stack::with(Wanted { workers: Some(1), filter, ..Wanted::default() }).await;
        for (model, provider) in [(WHOLE, whole), (STREAM, stream)] {
            let admin = &stack.admin;
            admin.provider(model, &provider.base_url(), None).await?;
            admin.credential(model, model, "sk-bench").await?;
            admin.price(model, model, "2.50", "0.25", "10.00").await?;
            admin.model(model, model, model, model).await?;
        }
        stack.admin.org(ORG).await?;
        let key = stack.admin.key(ORG, "bench", json!({})).await?;
        let sluicegate = Self { stack, key, keys: 0 };
        sluicegate.usable().await;
        Ok(sluicegate)
    }

    /// Fills the store with `n` keys. They are put there while nobody reads it: one by one would take minutes.
    pub async fn hold_keys(&mut self, n: i32) -> Result<()> {
        self.stack.control.process().terminate().await;
        let sql = "insert into api_key (public_id, hash, name, org_id, profile_id)
            select 'bulk' || i, sha256(('sk-sg-bulk' || i || '-secret')::bytea), 'bulk' || i, org_id, profile_id
            from api_key, generate_series($1 + 1, $2) i where api_key.id = $3";
        sqlx::query(sql).bind(self.keys).bind(n).bind(self.key.id).execute(self.stack.ledger.pool()).await?;
        let sql = "update revision set revision = revision + 1, keys = revision + 1";
        sqlx::query(sql).execute(self.stack.ledger.pool()).await?;
        self.keys = n;
        self.stack.control.restart().await;
        self.stack.envoy.restart().await;
        self.stack.envoy.ready().await;
        self.usable().await;
        Ok(())
    }

    pub async fn new_key(&self, name: &str) -> Result<NewKey> {
        self.stack.admin.key(ORG, name, json!({})).await
    }

    /// A request for `model` with this key.
    pub fn request(&self, model: &str, size: usize) -> Bytes {
        crate::load::request(
            "POST",
            "/v1/chat/completions",
            &self.key.secret,
            &chat::request(model, model == STREAM, size),
        )
    }

    async fn usable(&self) {
        eventually("both models answer", Duration::from_secs(20), || async {
            for model in [WHOLE, STREAM] {
                let call = Call::post("/v1/chat/completions", chat::request(model, model == STREAM, 0));
                let reply = send(Http::H1, self.stack.envoy.addr(), call.bearer(&self.key.secret)).await?;
                let status = reply.status;
                ensure!(status == 200, "{model}: {status} {}", reply.text().await?);
                reply.text().await?;
            }
            Ok(())
        })
        .await;
    }
}
