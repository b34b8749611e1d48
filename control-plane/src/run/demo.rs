//! A provider for the local run: OpenAI's shapes, a fixed answer, honest usage.

#![expect(clippy::indexing_slicing, reason = "only of JSON values: serde_json reads what is not there as null")]

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::{Stream, StreamExt as _, stream};
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// The model it serves, and the one for embeddings.
pub const MODEL: &str = "demo-1";
pub const EMBEDDING_MODEL: &str = "demo-embed-1";

const ANSWER: &str =
    "Hello from the demo provider. The request came through Envoy, and the usage below is in the ledger.";
/// Between two words of a stream.
const PACE: Duration = Duration::from_millis(15);
const DIMENSIONS: usize = 8;

const LARGEST_BODY: usize = 33 << 20;

/// The provider's routes; it wants `secret` as bearer token.
pub fn router(secret: Zeroizing<String>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/models", get(models))
        // What the gateway lets through; axum's default is 2 MB.
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .with_state(Arc::new(secret))
}

type Secret = State<Arc<Zeroizing<String>>>;

#[expect(clippy::result_large_err, reason = "axum's own type, once per refused request")]
fn check(secret: &str, headers: &HeaderMap) -> Result<(), Response> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if given.strip_prefix("Bearer ") == Some(secret) {
        return Ok(());
    }
    let error = json!({"error": {"message": "not the credential of this demo provider", "type": "invalid_request_error", "param": null, "code": "invalid_api_key"}});
    Err((StatusCode::UNAUTHORIZED, Json(error)).into_response())
}

async fn chat(State(secret): Secret, headers: HeaderMap, Json(request): Json<Value>) -> Response {
    if let Err(refused) = check(&secret, &headers) {
        return refused;
    }
    let usage = usage(&request);
    if request["stream"] == true {
        let with_usage = request["stream_options"]["include_usage"] == true;
        return Sse::new(chunks(with_usage.then_some(usage))).into_response();
    }
    Json(json!({
        "id": "chatcmpl-demo", "object": "chat.completion", "created": created(), "model": MODEL, "usage": usage,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER, "refusal": null}, "logprobs": null, "finish_reason": "stop"}],
    }))
    .into_response()
}

fn chunks(usage: Option<Value>) -> impl Stream<Item = Result<Event, Infallible>> {
    let created = created();
    let chunk = move |choices: Value, usage: Option<&Value>| {
        let mut chunk = json!({"id": "chatcmpl-demo", "object": "chat.completion.chunk", "created": created, "model": MODEL, "choices": choices});
        if let Some(usage) = usage {
            chunk["usage"] = usage.clone();
        }
        Event::default().data(chunk.to_string())
    };
    let delta = move |delta: Value, end: Option<&str>| {
        chunk(json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": end}]), None)
    };
    let role = delta(json!({"role": "assistant", "content": "", "refusal": null}), None);
    let words = ANSWER.split_inclusive(' ').map(move |word| delta(json!({"content": word}), None));
    let end = [delta(json!({}), Some("stop"))];
    let usage = usage.map(|usage| chunk(json!([]), Some(&usage)));
    let done = [Event::default().data("[DONE]")];
    let events = std::iter::once(role).chain(words).chain(end).chain(usage).chain(done);
    stream::iter(events.collect::<Vec<_>>()).then(|event| async {
        tokio::time::sleep(PACE).await;
        Ok(event)
    })
}

async fn embeddings(State(secret): Secret, headers: HeaderMap, Json(request): Json<Value>) -> Response {
    if let Err(refused) = check(&secret, &headers) {
        return refused;
    }
    let inputs = match &request["input"] {
        Value::Array(inputs) => inputs.len().max(1),
        _ => 1,
    };
    let tokens = words(&request["input"]);
    let data: Vec<_> =
        (0..inputs).map(|i| json!({"object": "embedding", "index": i, "embedding": vec![0.125; DIMENSIONS]})).collect();
    let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    Json(json!({"object": "list", "data": data, "model": EMBEDDING_MODEL, "usage": usage})).into_response()
}

async fn models() -> Json<Value> {
    let model = |id| json!({"id": id, "object": "model", "created": 0, "owned_by": "demo"});
    Json(json!({"object": "list", "data": [model(MODEL), model(EMBEDDING_MODEL)]}))
}

/// One token a word.
fn usage(request: &Value) -> Value {
    let (prompt, completion) = (words(&request["messages"]), ANSWER.split(' ').count() as u64);
    json!({
        "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    })
}

fn words(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.split_whitespace().count() as u64,
        Value::Array(items) => items.iter().map(words).sum(),
        Value::Object(fields) => fields.values().map(words).sum(),
        _ => 0,
    }
}

fn created() -> i64 {
    chrono::Utc::now().timestamp()
}
