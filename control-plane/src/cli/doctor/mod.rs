//! `sluicegate doctor`: looks at the control plane and its Envoys, and says what to do.

mod envoy;
mod expiry;
mod finding;
mod probe;
mod roster;

use std::process::ExitCode;

use chrono::Utc;
use reqwest::Url;
use serde_json::Value;

use super::client::{Client, items};
use super::output::{print, text};
use finding::{Finding, Findings};

#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {
    /// The admin interface of an Envoy to look into, such as http://127.0.0.1:9901; repeat for more
    #[arg(long, value_name = "URL")]
    envoy_admin: Vec<Url>,
}

/// Prints one line per finding, and fails if one is bad.
pub(super) async fn examine(args: &DoctorArgs, client: anyhow::Result<Client>) -> anyhow::Result<ExitCode> {
    let mut findings = match client {
        Ok(client) => control_plane(&client).await,
        Err(error) => vec![unreachable(&error)],
    };
    for url in &args.envoy_admin {
        findings.extend(probe::examine(url).await);
    }
    if args.envoy_admin.is_empty() {
        let how = "on its machine, give --envoy-admin http://127.0.0.1:9901";
        findings.push(Finding::Note(format!("Envoys: their own configuration was not looked at; {how}")));
    }
    let told: String = findings.iter().map(Finding::line).collect();
    print(&told)?;
    let bad = findings.iter().any(|finding| matches!(finding, Finding::Bad(_)));
    Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn unreachable(error: &anyhow::Error) -> Finding {
    Finding::Bad(format!("control plane: {error:#}"))
}

async fn control_plane(client: &Client) -> Vec<Finding> {
    let mut findings = Findings::about("control plane");
    match client.ready().await {
        Ok((ready, certificate)) => {
            if ready {
                findings.good("is ready");
            } else {
                findings.bad("is not ready", "its log says why");
            }
            if let Some(end) = certificate {
                let remedy = "replace the files of --tls-cert and --tls-key, and start it again";
                expiry::judge("its certificate", end, Utc::now(), remedy, &mut findings);
            }
        }
        Err(error) => return vec![unreachable(&anyhow::Error::context(error, "does not answer"))],
    }
    let mut all = findings.all;
    // What one call cannot tell, another may.
    for told in [configured(client).await, counts(client).await, envoys(client).await] {
        all.extend(told.unwrap_or_else(|error| vec![unreachable(&error)]));
    }
    // Who cannot ask is told so once.
    all.dedup();
    all
}

/// How many there are of what nothing works without.
async fn counts(client: &Client) -> anyhow::Result<Vec<Finding>> {
    let mut all = Vec::new();
    for (kind, consequence) in [
        ("providers", "nothing can be routed; add one with `sluicegate apply`"),
        ("models", "every request is refused; add one with `sluicegate apply`"),
        ("keys", "nobody can use it; make one with `sluicegate keys create`"),
    ] {
        all.push(match client.list(&["v1", kind]).await?.len() {
            0 => Finding::Bad(format!("{kind}: none: {consequence}")),
            count => Finding::Good(format!("{kind}: {count}")),
        });
    }
    Ok(all)
}

/// What the control plane finds itself.
async fn configured(client: &Client) -> anyhow::Result<Vec<Finding>> {
    Ok(items(&client.get(&["v1", "doctor"], &[]).await?, "items")?.iter().map(told).collect())
}

async fn envoys(client: &Client) -> anyhow::Result<Vec<Finding>> {
    let answer = client.get(&["v1", "envoys"], &[("limit", "1000")]).await?;
    Ok(roster::judge_all(items(&answer, "items")?))
}

fn told(item: &Value) -> Finding {
    let fact = format!("{}: {}", text(item, "about"), text(item, "message"));
    let with_remedy = || format!("{fact}; {}", text(item, "remedy"));
    match text(item, "severity").as_str() {
        "ok" => Finding::Good(fact),
        "warning" => Finding::Warning(with_remedy()),
        _ => Finding::Bad(with_remedy()),
    }
}
