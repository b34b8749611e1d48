//! The Admin API as a test uses it.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// A client with an admin token.
#[derive(Clone)]
pub struct Admin {
    client: reqwest::Client,
    base: String,
    token: String,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("base", &self.base).finish_non_exhaustive()
    }
}

/// A key as it was created; the secret is shown this once.
#[derive(Clone, Debug)]
pub struct NewKey {
    pub id: i32,
    pub secret: String,
}

impl Admin {
    pub fn new(addr: SocketAddr, token: &str) -> Self {
        Self { client: reqwest::Client::new(), base: format!("http://{addr}"), token: token.to_owned() }
    }

    /// Status and body of any call; the body is null where it is no JSON.
    pub async fn call(&self, method: reqwest::Method, path: &str, body: Option<&Value>) -> Result<(u16, Value)> {
        let mut request = self.client.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let reply = request.send().await?;
        let status = reply.status().as_u16();
        let body = reply.bytes().await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    pub async fn post(&self, path: &str, body: Value) -> Result<Value> {
        let (status, reply) = self.call(reqwest::Method::POST, path, Some(&body)).await?;
        ensure!((200..300).contains(&status), "POST {path} {body}: {status} {reply}");
        Ok(reply)
    }

    pub async fn get(&self, path: &str) -> Result<Value> {
        let (status, reply) = self.call(reqwest::Method::GET, path, None).await?;
        ensure!(status == 200, "GET {path}: {status} {reply}");
        Ok(reply)
    }

    pub async fn delete(&self, path: &str) -> Result<()> {
        let (status, reply) = self.call(reqwest::Method::DELETE, path, None).await?;
        ensure!((200..300).contains(&status), "DELETE {path}: {status} {reply}");
        Ok(())
    }

    /// An OpenAI provider at `base_url`, on the loopback.
    pub async fn provider(&self, name: &str, base_url: &str, ca: Option<&str>) -> Result<()> {
        let mut body = json!({"name": name, "dialect": "openai", "base_url": base_url, "allow_private": true});
        if let (Some(ca), Some(body)) = (ca, body.as_object_mut()) {
            body.insert("ca".to_owned(), ca.into());
        }
        self.post("/v1/providers", body).await.map(drop)
    }

    /// A credential that the control plane stores.
    pub async fn credential(&self, name: &str, provider: &str, secret: &str) -> Result<()> {
        let body = json!({"name": name, "provider": provider, "source": "stored", "secret": secret});
        self.post("/v1/credentials", body).await.map(drop)
    }

    /// A model with one target.
    pub async fn model(&self, name: &str, provider: &str, model: &str, credential: &str) -> Result<()> {
        let target = json!({"provider": provider, "model": model, "credential": credential});
        self.post("/v1/models", json!({"name": name, "targets": [target]})).await.map(drop)
    }

    /// Dollars per million tokens.
    pub async fn price(&self, provider: &str, model: &str, input: &str, cache_read: &str, output: &str) -> Result<()> {
        let body =
            json!({"provider": provider, "model": model, "input": input, "cache_read": cache_read, "output": output});
        self.post("/v1/prices", body).await.map(drop)
    }

    pub async fn org(&self, name: &str) -> Result<()> {
        self.post("/v1/orgs", json!({"name": name})).await.map(drop)
    }

    /// A key of `org`; `more` is merged into the request.
    pub async fn key(&self, org: &str, name: &str, more: Value) -> Result<NewKey> {
        let mut body = json!({"org": org, "name": name});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
        }
        let reply = self.post("/v1/keys", body).await?;
        let id = reply.get("id").and_then(Value::as_i64).context("an id")?;
        let secret = secret_in(&reply).with_context(|| format!("no key in {reply}"))?;
        Ok(NewKey { id: i32::try_from(id)?, secret })
    }

    pub async fn revoke(&self, key: i32) -> Result<()> {
        self.delete(&format!("/v1/keys/{key}")).await
    }

    pub async fn block_org(&self, org: &str) -> Result<()> {
        self.post(&format!("/v1/orgs/{org}/block"), json!({})).await.map(drop)
    }

    pub async fn unblock_org(&self, org: &str) -> Result<()> {
        self.post(&format!("/v1/orgs/{org}/unblock"), json!({})).await.map(drop)
    }
}

/// The first string in `value` that is a whole key.
fn secret_in(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.starts_with("sk-sg-") => Some(text.clone()),
        Value::Object(fields) => fields.values().find_map(secret_in),
        Value::Array(items) => items.iter().find_map(secret_in),
        _ => None,
    }
}
