//! What one test has to itself on a stack that others may share.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use scripted_provider::{Answer, Recorded, Rule};
use serde_json::{Value, json};

use crate::admin::NewKey;
use crate::client::{Call, Http, Reply, send};
use crate::run::eventually;
use crate::stack::{CHAT, Stack};

/// One test's corner of a stack: an org and a key of its own, and requests that carry its tag to the provider.
#[derive(Debug)]
pub struct Scene<'a> {
    pub stack: &'a Stack,
    /// Sent as `OpenAI-Project`, which reaches the provider untouched.
    pub tag: String,
    pub key: NewKey,
}

impl<'a> Scene<'a> {
    /// `more` goes into the key, such as `{"models": [..]}`.
    pub async fn new(stack: &'a Stack, name: &str, more: Value) -> Scene<'a> {
        let tag = format!("{name}-{}", uuid::Uuid::now_v7().simple());
        stack.admin.org(&tag).await.expect("an org");
        let key = stack.admin.key(&tag, "key", more).await.expect("a key");
        let scene = Scene { stack, tag, key };
        scene.known().await;
        scene
    }

    /// The Envoy has heard of the key.
    async fn known(&self) {
        eventually("the Envoy knows the key", Duration::from_secs(5), || async {
            let call = Call::get("/v1/models").bearer(&self.key.secret);
            let status = send(Http::H1, self.addr(), call).await?.status;
            ensure!(status == 200, "{status}");
            Ok(())
        })
        .await;
    }

    pub fn addr(&self) -> SocketAddr {
        self.stack.envoy.addr()
    }

    /// Requests of this scene get this answer from now on.
    pub fn answer(&self, answer: impl Into<Answer>) {
        self.rule(Rule::any().answer(answer));
    }

    /// A rule for requests of this scene.
    pub fn rule(&self, rule: Rule) {
        self.stack.provider.first(rule.header("openai-project", &self.tag));
    }

    /// A call with this scene's key and tag.
    pub fn call(&self, path: &str, body: impl Into<bytes::Bytes>) -> Call {
        Call::post(path, body).bearer(&self.key.secret).header("openai-project", &self.tag)
    }

    /// A chat request over HTTP/1.1; `more` is merged into the body.
    pub async fn chat(&self, more: Value) -> anyhow::Result<Reply> {
        self.send(Http::H1, self.chat_call(more)).await
    }

    pub fn chat_call(&self, more: Value) -> Call {
        self.call("/v1/chat/completions", chat_body(more).to_string())
    }

    pub async fn send(&self, http: Http, call: Call) -> anyhow::Result<Reply> {
        send(http, self.addr(), call).await
    }

    /// Waits until `n` requests of this scene reached the provider.
    pub async fn provider_saw(&self, n: usize) -> Vec<Recorded> {
        let tag = self.tag.clone();
        let mine = move |r: &Recorded| r.header("openai-project") == Some(&tag);
        let wait = self.stack.provider.wait_for_those(n, mine);
        tokio::time::timeout(Duration::from_secs(15), wait).await.expect("the provider gets the requests")
    }
}

/// A chat request's body, with `more` merged into it.
pub fn chat_body(more: Value) -> Value {
    let mut body = json!({"model": CHAT, "messages": [{"role": "user", "content": "Say hello."}]});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    body
}
