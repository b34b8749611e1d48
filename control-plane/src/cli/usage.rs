use std::io::{BufRead, BufReader, Read as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use super::client::{Client, items};
use super::input;
use super::output::{Column, Output, dollars, json, millis, note, print, sum, text};
use crate::admin::Difference;
use crate::store::number;

/// The most that one call answers.
const MAX_ROWS: i64 = 1000;

#[derive(Debug, clap::Args)]
pub(super) struct UsageArgs {
    /// Sum by this instead of listing attempts
    #[arg(long, value_parser = ["hour", "day", "org", "team", "user", "key", "model"])]
    by: Option<String>,
    /// From when on, such as 2026-01-02T00:00:00Z, or a date: its midnight in UTC
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
    /// At most so many, the newest first; 1000 at most
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=MAX_ROWS))]
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
    ("REFUSAL/ENDED", |r| text(r, if r["refusal"].is_string() { "refusal" } else { "ended" })),
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

pub(super) async fn usage(args: &UsageArgs, client: &Client, output: Output) -> anyhow::Result<()> {
    // One more than is shown tells whether there are more.
    let mut query = vec![("limit", (i64::from(args.limit) + 1).min(MAX_ROWS).to_string())];
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
    let rows = items(&answer, "items")?;
    let shown = usize::try_from(args.limit)?;
    let cut = rows.len() > shown;
    let full = i64::try_from(rows.len())? == MAX_ROWS;
    output.rows(rows.get(..shown).unwrap_or(rows), if args.by.is_some() { SUMS } else { ATTEMPTS })?;
    if cut {
        note(&format!("only {shown} are shown, there are more: raise --limit, or narrow with --from and --to"));
    } else if full {
        note(&format!("only {shown} are shown, there may be more: narrow with --from and --to"));
    }
    Ok(())
}

/// The id of what a person names.
async fn id_of(client: &Client, kind: &str, reference: &str) -> anyhow::Result<String> {
    if number::id(reference).is_some() {
        return Ok(reference.to_owned());
    }
    let noun = client.get(&["v1", &format!("{kind}s"), reference], &[]).await?;
    Ok(text(&noun, "id"))
}

/// How much of a log is sent at once.
const BATCH_BYTES: usize = 4 << 20;
/// No line is as long: Envoy's URLs and our records end well below.
const MAX_LINE_BYTES: u64 = 8 << 20;

pub(super) async fn reconcile(args: &ReconcileArgs, client: &Client, output: Output) -> anyhow::Result<ExitCode> {
    let mut log = BufReader::new(input::open(&args.file)?);
    let mut total = Difference::default();
    loop {
        let batch = next_batch(&mut log).with_context(|| args.file.display().to_string())?;
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
        Output::Json => print(&json(&row))?,
        Output::Table => output.rows(&[row], RECONCILED)?,
    }
    Ok(verdict(&total))
}

/// Fails where the log had lines and none of them was of use.
fn verdict(total: &Difference) -> ExitCode {
    let Difference { lines, records, rejected, unreadable, .. } = *total;
    if lines == 0 {
        note("the log is empty");
        return ExitCode::SUCCESS;
    }
    if records > rejected {
        return ExitCode::SUCCESS;
    }
    note(&match (records, unreadable) {
        (0, 0) => format!("none of {lines} lines holds a record: is it the access log of an Envoy under Sluicegate?"),
        (0, _) => format!("none of {lines} lines holds a record that can be read, {unreadable} are cut or garbled"),
        _ => format!("all {records} records in {lines} lines were rejected: they make no sense or are too old"),
    });
    ExitCode::FAILURE
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
fn next_batch(log: &mut impl BufRead) -> std::io::Result<String> {
    let mut batch = Vec::new();
    while batch.len() < BATCH_BYTES {
        let read = log.take(MAX_LINE_BYTES).read_until(b'\n', &mut batch)?;
        if read as u64 == MAX_LINE_BYTES && batch.last() != Some(&b'\n') {
            return Err(std::io::Error::other(format!(
                "a line is longer than {MAX_LINE_BYTES} bytes: this is no access log"
            )));
        }
        if read == 0 {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&batch).into_owned())
}
