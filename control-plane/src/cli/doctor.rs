use std::process::ExitCode;

use anyhow::Context as _;
use chrono::{DateTime, Utc};
use serde_json::Value;

use super::client::Client;
use super::output::{print, text};

#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {}

/// What was looked at, and what is wrong with it.
type Finding = (String, Result<String, String>);

/// Looks at the control plane and its Envoys; prints one line per finding, and fails if one is bad.
pub(super) async fn examine(client: &Client) -> anyhow::Result<ExitCode> {
    let ready = client.ready().await.context("the control plane does not answer")?;
    let mut findings: Vec<Finding> = vec![(
        "control plane".to_owned(),
        if ready { Ok("is ready".to_owned()) } else { Err("is not ready".to_owned()) },
    )];
    for (kind, consequence) in
        [("providers", "nothing can be routed"), ("models", "every request is refused"), ("keys", "nobody can use it")]
    {
        let count = client.list(&["v1", kind]).await?.len();
        let verdict = if count > 0 { Ok(count.to_string()) } else { Err(format!("none: {consequence}")) };
        findings.push((kind.to_owned(), verdict));
    }
    let envoys = client.get(&["v1", "envoys"], &[]).await?;
    let envoys = envoys.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
    let live: Vec<&Value> = envoys.iter().filter(|envoy| is_live(envoy)).collect();
    if live.is_empty() {
        findings.push(("Envoys".to_owned(), Err("none was seen in the last minute".to_owned())));
    }
    let newest = live.iter().filter_map(|envoy| envoy.get("policy_revision")?.as_i64()).max().unwrap_or(0);
    findings.extend(live.iter().map(|envoy| (format!("Envoy {}", text(envoy, "node")), judge(envoy, newest))));
    for (what, verdict) in &findings {
        match verdict {
            Ok(fact) => print(&format!("ok   {what}: {fact}\n")),
            Err(fault) => print(&format!("BAD  {what}: {fault}\n")),
        }
    }
    let good = findings.iter().all(|(_, verdict)| verdict.is_ok());
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_live(envoy: &Value) -> bool {
    let seen = text(envoy, "last_seen").parse::<DateTime<Utc>>();
    seen.is_ok_and(|seen| (Utc::now() - seen).num_seconds() < 60)
}

fn judge(envoy: &Value, newest: i64) -> Result<String, String> {
    let policy = envoy.get("policy_revision").and_then(Value::as_i64).unwrap_or(0);
    if envoy.get("ready") != Some(&Value::Bool(true)) {
        return Err("has no complete state yet".to_owned());
    }
    if envoy.get("refused_revision").and_then(Value::as_i64).is_some_and(|refused| refused > policy) {
        let (field, message) = (text(envoy, "refused_field"), text(envoy, "refused_message"));
        return Err(format!("refused policy {}: {field}: {message}", text(envoy, "refused_revision")));
    }
    if policy < newest {
        return Err(format!("works by policy {policy}, others by {newest}"));
    }
    Ok(format!("Envoy {}, policy {policy}", text(envoy, "envoy_version")))
}
