use std::process::ExitCode;

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use super::client::{Client, items};
use super::output::{print, text};

#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {}

/// An Envoy that was not seen for this long is gone: it reports every five seconds.
const GONE_AFTER: TimeDelta = TimeDelta::seconds(15);

/// One line of what was found.
#[derive(Debug, PartialEq, Eq)]
enum Finding {
    Good(String),
    Note(String),
    Warning(String),
    Bad(String),
}

impl Finding {
    fn line(&self) -> String {
        match self {
            Self::Good(fact) => format!("ok   {fact}\n"),
            Self::Note(fact) => format!("note {fact}\n"),
            Self::Warning(fault) => format!("WARN {fault}\n"),
            Self::Bad(fault) => format!("BAD  {fault}\n"),
        }
    }
}

/// Looks at the control plane and its Envoys; prints one line per finding, and fails if one is bad.
pub(super) async fn examine(client: &Client) -> anyhow::Result<ExitCode> {
    let ready = client.ready().await.context("the control plane does not answer")?;
    let mut findings = vec![if ready {
        Finding::Good("control plane: is ready".to_owned())
    } else {
        Finding::Bad("control plane: is not ready; its log says why, most often the database is away".to_owned())
    }];
    for (kind, consequence) in [
        ("providers", "nothing can be routed; add one with `sluicegate apply`"),
        ("models", "every request is refused; add one with `sluicegate apply`"),
        ("keys", "nobody can use it; make one with `sluicegate keys create`"),
    ] {
        findings.push(match client.list(&["v1", kind]).await?.len() {
            0 => Finding::Bad(format!("{kind}: none: {consequence}")),
            count => Finding::Good(format!("{kind}: {count}")),
        });
    }
    let configured = client.get(&["v1", "doctor"], &[]).await?;
    findings.extend(items(&configured, "items")?.iter().map(told));
    let envoys = client.get(&["v1", "envoys"], &[("limit", "1000")]).await?;
    findings.extend(judge_all(items(&envoys, "items")?, Utc::now()));
    for finding in &findings {
        print(&finding.line())?;
    }
    let bad = findings.iter().any(|finding| matches!(finding, Finding::Bad(_)));
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A finding of the control plane's own.
fn told(item: &Value) -> Finding {
    let line = format!("{}: {}; {}", text(item, "about"), text(item, "message"), text(item, "remedy"));
    match text(item, "severity").as_str() {
        "warning" => Finding::Warning(line),
        _ => Finding::Bad(line),
    }
}

/// The Envoys that live, compared with each other, and those that are gone, without judgement.
fn judge_all(envoys: &[Value], now: DateTime<Utc>) -> Vec<Finding> {
    let (live, gone): (Vec<&Value>, Vec<&Value>) = envoys.iter().partition(|envoy| is_live(envoy, now));
    let mut findings = Vec::new();
    if live.is_empty() {
        let remedy = "start one with the bootstrap and node token of this control plane";
        findings.push(Finding::Bad(format!("Envoys: none is connected; {remedy}")));
    }
    let newest = live.iter().filter_map(|envoy| envoy.get("policy_revision")?.as_i64()).max().unwrap_or(0);
    findings.extend(live.iter().map(|envoy| judge(envoy, newest)));
    // The latest boot of a node comes first; earlier ones say nothing more.
    let mut told: Vec<String> = live.iter().map(|envoy| text(envoy, "node")).collect();
    for envoy in gone {
        let node = text(envoy, "node");
        if !told.contains(&node) {
            findings.push(Finding::Note(format!("Envoy {node}: gone since {}", text(envoy, "last_seen"))));
            told.push(node);
        }
    }
    findings
}

fn is_live(envoy: &Value, now: DateTime<Utc>) -> bool {
    let seen = text(envoy, "last_seen").parse::<DateTime<Utc>>();
    seen.is_ok_and(|seen| now - seen < GONE_AFTER)
}

fn judge(envoy: &Value, newest: i64) -> Finding {
    let name = format!("Envoy {}", text(envoy, "node"));
    let policy = envoy.get("policy_revision").and_then(Value::as_i64).unwrap_or(0);
    if envoy.get("ready") != Some(&Value::Bool(true)) {
        return Finding::Bad(format!("{name}: has no complete state yet; if it stays so, look into its log"));
    }
    if envoy.get("refused_revision").and_then(Value::as_i64).is_some_and(|refused| refused > policy) {
        let (revision, field) = (text(envoy, "refused_revision"), text(envoy, "refused_field"));
        let remedy = "change that, or run the filter of this version";
        let message = text(envoy, "refused_message");
        return Finding::Bad(format!("{name}: refused policy {revision}: {field}: {message}; {remedy}"));
    }
    if policy < newest {
        let remedy = "if it stays behind, look into its log";
        return Finding::Bad(format!("{name}: works by policy {policy}, others by {newest}; {remedy}"));
    }
    Finding::Good(format!("{name}: Envoy {}, policy {policy}", text(envoy, "envoy_version")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_gone_is_noted_and_not_compared_with() {
        let now = Utc::now();
        let envoy = |node: &str, age: i64, policy: i64| {
            let seen = now - TimeDelta::seconds(age);
            json!({"node": node, "ready": true, "policy_revision": policy, "envoy_version": "1", "last_seen": seen})
        };
        let found = judge_all(&[envoy("a", 1, 4), envoy("b", 16, 9), envoy("b", 30, 8), envoy("a", 40, 9)], now);
        let lines: Vec<String> = found.iter().map(Finding::line).collect();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert_eq!(lines[0], "ok   Envoy a: Envoy 1, policy 4\n");
        assert!(lines[1].starts_with("note Envoy b: gone since "), "{lines:?}");
        let found = judge_all(&[envoy("a", 1, 4), envoy("b", 2, 5)], now);
        assert!(matches!(&found[..], [Finding::Bad(_), Finding::Good(_)]), "{found:?}");
        assert!(matches!(&judge_all(&[envoy("a", 20, 4)], now)[..], [Finding::Bad(_), Finding::Note(_)]));
    }
}
