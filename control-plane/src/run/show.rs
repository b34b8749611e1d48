//! Sends requests through Envoy and shows what became of them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures::StreamExt as _;
use serde_json::{Value, json};
use sluicegate_core::policy::names;
use uuid::Uuid;

use super::local::Local;
use super::report::{Report, dollars, millis};
use super::setup::Model;
use crate::admin;
use crate::store::UsageRow;

/// A record leaves the filter within milliseconds; this is for a busy machine.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);
/// A model may think for a while; one that hangs is given up.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
const UNKNOWN_KEY: &str = "sk-sg-0000000000000000-00000000000000000000000000";

/// What answered.
#[derive(Debug)]
pub struct Shown {
    pub model: Model,
    /// The id of its last request.
    pub last: Option<Uuid>,
}

/// What a client saw.
struct Reply {
    status: u16,
    operation: Option<Uuid>,
    text: String,
    first: Duration,
    total: Duration,
}

/// One request, one stream, one refusal, to the first model that answers. Returns that model.
///
/// # Errors
/// When none does. Everything still runs then.
pub async fn show(local: &Local, report: &Report) -> anyhow::Result<Shown> {
    let key = local.key.as_ref().context("there is no key to send a request with")?;
    ensure!(!local.models.is_empty(), "there is no model to send a request to");
    let http = reqwest::Client::builder().timeout(ANSWERED_WITHIN).build()?;
    for model in &local.models {
        match requests(&http, local, model, key, report).await {
            Ok(last) => return Ok(Shown { model: model.clone(), last }),
            Err(error) => report.line(&format!("     failed    {error:#}")),
        }
    }
    bail!("no model answered")
}

async fn requests(
    http: &reqwest::Client,
    local: &Local,
    model: &Model,
    key: &str,
    report: &Report,
) -> anyhow::Result<Option<Uuid>> {
    let mut last = None;
    for (title, stream) in [("a request", false), ("a stream", true)] {
        let reply = send(http, local, model, key, stream).await?;
        report.line(&format!("\n  {title}: POST /v1/chat/completions, model {}, status {}", model.0, reply.status));
        ensure!(reply.status == 200, "{}", reply.text);
        let operation = reply.operation.context("the reply names no request id")?;
        let row = recorded(&local.admin, operation).await?;
        accepted(report, &reply, &row, stream);
        last = Some(operation);
    }
    let reply = send(http, local, model, UNKNOWN_KEY, false).await?;
    report.line(&format!("\n  the same with a key nobody knows: status {}", reply.status));
    ensure!(reply.status == 401, "an unknown key was not refused");
    report.property("reply", &reply.text);
    Ok(last)
}

async fn send(http: &reqwest::Client, local: &Local, model: &Model, key: &str, stream: bool) -> anyhow::Result<Reply> {
    let body = json!({
        "model": model.0, "stream": stream, "max_tokens": 64,
        "messages": [{"role": "user", "content": "Say hello in one sentence."}],
    });
    let began = Instant::now();
    let url = format!("http://{}/v1/chat/completions", local.envoy);
    let response = http.post(url).bearer_auth(key).json(&body).send().await.context("no reply from Envoy")?;
    let status = response.status().as_u16();
    let operation = response.headers().get(names::REQUEST_ID_HEADER);
    let operation = operation.and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
    let mut chunks = response.bytes_stream();
    let (mut bytes, mut first) = (Vec::new(), None);
    while let Some(chunk) = chunks.next().await {
        bytes.extend_from_slice(&chunk.context("the reply broke off")?);
        first.get_or_insert_with(|| began.elapsed());
    }
    let total = began.elapsed();
    let text = text(&String::from_utf8_lossy(&bytes), stream && status == 200);
    Ok(Reply { status, operation, text, first: first.unwrap_or(total), total })
}

/// What the model, or the gateway, said.
fn text(body: &str, stream: bool) -> String {
    let parse = |json: &str| serde_json::from_str::<Value>(json).unwrap_or_default();
    let find = |json: &Value, path: &str| json.pointer(path).and_then(Value::as_str).map(str::to_owned);
    if stream {
        let events = body.lines().filter_map(|line| line.strip_prefix("data: "));
        return events.map(|event| find(&parse(event), "/choices/0/delta/content").unwrap_or_default()).collect();
    }
    let reply = parse(body);
    find(&reply, "/choices/0/message/content").or_else(|| find(&reply, "/error/message")).unwrap_or_default()
}

/// The last attempt of a request, once the ledger has it.
async fn recorded(admin: &admin::Service, operation: Uuid) -> anyhow::Result<UsageRow> {
    let find = async {
        loop {
            match admin.explain(operation).await {
                Ok(rows) => {
                    if let Some(row) = rows.into_iter().find(|row| row.last) {
                        return anyhow::Ok(row);
                    }
                }
                Err(admin::Error::NotFound(_)) => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(RECORDED_WITHIN, find)
        .await
        .with_context(|| format!("request {operation} is not in the ledger after {RECORDED_WITHIN:?}"))?
}

fn accepted(report: &Report, reply: &Reply, row: &UsageRow, stream: bool) {
    report.property("reply", &reply.text);
    let input = row.input + row.cache_read + row.cache_write_5m + row.cache_write_1h;
    report.property("tokens", &format!("{input} in, {} out ({})", row.output + row.reasoning, row.source));
    report.property("cost", &row.cost_nano.map_or_else(|| "no price".to_owned(), dollars));
    report.property("backend", row.backend.as_deref().unwrap_or("none"));
    report.property("rule", &format!("model {} by name", row.model.as_deref().unwrap_or(&row.requested_model)));
    let first = if stream { format!(", first token after {:.1} ms", millis_of(reply.first)) } else { String::new() };
    let latency =
        format!("{:.1} ms{first}; the gateway's share of it {}", millis_of(reply.total), millis(row.gateway_us));
    report.property("latency", &latency);
    report.property("id", &row.operation.to_string());
}

fn millis_of(d: Duration) -> f64 {
    d.as_secs_f64() * 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_is_found_in_either_form() {
        assert_eq!(text(r#"{"choices":[{"message":{"content":"Hi"}}]}"#, false), "Hi");
        assert_eq!(text(r#"{"error":{"message":"no"}}"#, false), "no");
        let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"H\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"i\"}}]}\n\ndata: [DONE]\n\n";
        assert_eq!(text(stream, true), "Hi");
    }
}
