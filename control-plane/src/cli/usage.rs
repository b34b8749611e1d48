use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

use super::client::Client;
use super::output::{Column, Output, dollars, millis, sum, text};
use crate::admin::Difference;

#[derive(Debug, clap::Args)]
pub(super) struct UsageArgs {
    /// Sum by hour, day, key or model instead of listing attempts
    #[arg(long, value_parser = ["hour", "day", "key", "model"])]
    by: Option<String>,
    /// From when on, such as 2026-01-02T00:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Until before when
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Of one org, by id or name
    #[arg(long)]
    org: Option<String>,
    /// Of one team, by id or <org>/<name>
    #[arg(long)]
    team: Option<String>,
    /// Of one user, by id or <org>/<name>
    #[arg(long)]
    user: Option<String>,
    /// Of one key, by id, public id or <org>/<name>
    #[arg(long)]
    key: Option<String>,
    /// Of one model, by id or name
    #[arg(long)]
    model: Option<String>,
    /// At most so many, the newest first
    #[arg(long, default_value_t = 20)]
    limit: u32,
}

#[derive(Debug, clap::Args)]
pub(super) struct ReconcileArgs {
    /// An Envoy's access log; - for standard input
    #[arg(default_value = "-")]
    file: PathBuf,
}

pub(super) const INPUT: &[&str] = &["input", "cache_read", "cache_write_5m", "cache_write_1h", "audio_in"];
pub(super) const OUTPUT: &[&str] = &["output", "reasoning", "audio_out"];

const ATTEMPTS: &[Column] = &[
    ("REQUEST", |r| text(r, "operation")),
    ("#", |r| text(r, "attempt")),
    ("AT", |r| text(r, "admitted_at")),
    ("ORG", |r| text(r, "org")),
    ("KEY", |r| text(r, "key")),
    ("MODEL", |r| text(r, "requested_model")),
    ("BACKEND", |r| text(r, "backend")),
    ("STATUS", |r| text(r, "status")),
    ("IN", |r| sum(r, INPUT)),
    ("OUT", |r| sum(r, OUTPUT)),
    ("COST", |r| dollars(r, "cost_nano")),
    ("TOTAL", |r| millis(r, "total_us")),
    ("GATEWAY", |r| millis(r, "gateway_us")),
    ("ENDED", |r| text(r, "ended")),
];

const SUMS: &[Column] = &[
    ("WHAT", |r| text(r, "what")),
    ("REQUESTS", |r| text(r, "requests")),
    ("ATTEMPTS", |r| text(r, "attempts")),
    ("REFUSED", |r| text(r, "refused")),
    ("ESTIMATED", |r| text(r, "estimated")),
    ("IN", |r| text(r, "input")),
    ("CACHED", |r| text(r, "cached")),
    ("OUT", |r| text(r, "output")),
    ("COST", |r| dollars(r, "cost_nano")),
    ("UNPRICED", |r| text(r, "unpriced")),
];

pub(super) fn items(answer: &Value, field: &str) -> Vec<Value> {
    answer.get(field).and_then(Value::as_array).cloned().unwrap_or_default()
}

pub(super) async fn usage(args: &UsageArgs, client: &Client, output: Output) -> anyhow::Result<()> {
    let mut query = vec![("limit", args.limit.to_string())];
    for (name, value) in [("from", &args.from), ("to", &args.to), ("by", &args.by)] {
        query.extend(value.clone().map(|value| (name, value)));
    }
    let filters =
        [("org", &args.org), ("team", &args.team), ("user", &args.user), ("key", &args.key), ("model", &args.model)];
    for (name, reference) in filters {
        if let Some(reference) = reference {
            query.push((name, id_of(client, name, reference).await?));
        }
    }
    let query: Vec<(&str, &str)> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let answer = client.get(&["v1", "usage"], &query).await?;
    output.rows(&items(&answer, "items"), if args.by.is_some() { SUMS } else { ATTEMPTS });
    Ok(())
}

/// The id of what a person names.
async fn id_of(client: &Client, kind: &str, reference: &str) -> anyhow::Result<String> {
    if reference.parse::<u32>().is_ok() {
        return Ok(reference.to_owned());
    }
    let noun = client.get(&["v1", &format!("{kind}s"), reference], &[]).await?;
    Ok(text(&noun, "id"))
}

/// How much of a log is sent at once.
const BATCH_BYTES: usize = 4 << 20;

pub(super) async fn reconcile(args: &ReconcileArgs, client: &Client, output: Output) -> anyhow::Result<()> {
    let mut log: Box<dyn BufRead> = if args.file == Path::new("-") {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        Box::new(BufReader::new(File::open(&args.file).with_context(|| args.file.display().to_string())?))
    };
    let mut total = Difference::default();
    loop {
        let batch = next_batch(log.as_mut()).with_context(|| args.file.display().to_string())?;
        if batch.is_empty() {
            break;
        }
        let part: Difference = serde_json::from_value(client.post_text(&["v1", "reconcile"], batch).await?)?;
        total.lines += part.lines;
        total.records += part.records;
        total.already += part.already;
        total.added += part.added;
        total.unfinished += part.unfinished;
        total.rejected += part.rejected;
        total.unreadable += part.unreadable;
    }
    let row = serde_json::to_value(total)?;
    match output {
        Output::Json => output.value(&row),
        Output::Table => output.rows(&[row], RECONCILED),
    }
    Ok(())
}

const RECONCILED: &[Column] = &[
    ("LINES", |r| text(r, "lines")),
    ("RECORDS", |r| text(r, "records")),
    ("ALREADY", |r| text(r, "already")),
    ("ADDED", |r| text(r, "added")),
    ("UNFINISHED", |r| text(r, "unfinished")),
    ("REJECTED", |r| text(r, "rejected")),
    ("UNREADABLE", |r| text(r, "unreadable")),
];

/// Whole lines of about [`BATCH_BYTES`] together; empty at the end.
fn next_batch(log: &mut dyn BufRead) -> std::io::Result<String> {
    let mut batch = Vec::new();
    while batch.len() < BATCH_BYTES && log.read_until(b'\n', &mut batch)? > 0 {}
    Ok(String::from_utf8_lossy(&batch).into_owned())
}
