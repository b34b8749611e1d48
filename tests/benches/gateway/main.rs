//! `make bench`: what Sluicegate costs, measured on this machine in one run of some 90 seconds. It judges nothing.
//!
//! * CPU time of the Envoy process (all threads, user and system) by request, and latency at the client, of 8 connections
//!   that each ask again when they have been answered: straight to the provider; through a bare Envoy ([`plain`]); with a
//!   pair of filters that do nothing; with Sluicegate as it ships ([`sluicegate`]), 10,000 keys in its store. Envoy has one
//!   worker. Client, provider, control plane and Postgres share the machine, so p99 is mostly theirs and the kernel's.
//!   "x bare" is the median of the rounds' ratios. What the filter does between requests
//!   counts while they run: at low rates its ticks show.
//! * Host calls by request, of a build of the filter that counts them ([`calls`]).
//! * Time from the Admin API's answer to a revocation until Envoy has refused the key to one connection that asks all the
//!   time ([`revoke`]). Postgres runs without fsync here, but commits come before that answer.

mod calls;
mod chat;
mod compare;
mod cpu;
mod load;
mod plain;
mod revoke;
mod sluicegate;
mod table;

use std::time::Duration;

use anyhow::{Context as _, Result};
use compare::{CONNECTIONS, Plan, Subject, compare};
use sluicegate::{STREAM, Sluicegate, WHOLE};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::tools;

const FEW_KEYS: i32 = 10_000;
const MANY_KEYS: i32 = 100_000;

fn main() -> Result<()> {
    // reqwest asks for it, also where it speaks plain text only; it is installed once.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(bench())
}

async fn bench() -> Result<()> {
    print_environment().await?;
    let (whole, stream) = (chat::whole().await?, chat::stream().await?);
    let mut sluicegate = Sluicegate::start(&whole, &stream, None).await?;
    sluicegate.hold_keys(FEW_KEYS).await?;
    let others = [sluicegate.stack.control.process().pid()];

    let (bare, noop) = (plain::bare(whole.addr()).await, plain::noop(whole.addr()).await?);
    let request = sluicegate.request(WHOLE, 2_048);
    let subject = |name, envoy: &Envoy| Subject {
        name,
        to: envoy.addr(),
        request: request.clone(),
        envoy: Some(envoy.process().pid()),
    };
    let direct = Subject { name: "direct", to: whole.addr(), request: request.clone(), envoy: None };
    let subjects =
        [direct, subject("bare", &bare), subject("no-op", &noop), subject("Sluicegate", &sluicegate.stack.envoy)];
    let title = format!("chat of 2 KB, {CONNECTIONS} connections, by request");
    compare(&title, &subjects, plan(8, 800, 1), &others).await?;

    let streaming = plain::bare(stream.addr()).await;
    let title = format!("stream of {} events, {CONNECTIONS} connections, CPU by event", chat::EVENTS);
    pair(&title, &streaming, &sluicegate, STREAM, 2_048, plan(4, 1_500, chat::EVENTS), &others).await?;
    pair("chat of 200 KB, by request", &bare, &sluicegate, WHOLE, 200 << 10, plan(4, 700, 1), &others).await?;
    pair("chat of 2 MB, by request", &bare, &sluicegate, WHOLE, 2 << 20, plan(4, 1_000, 1), &others).await?;

    calls::print(&whole, &stream).await?;
    println!("\nrevocations, ms from the Admin API's answer to the first request refused");
    println!("{:>12}{:>14}{:>10}{:>10}{:>10}{:>10}", "keys", "revocations", "p50", "p90", "p99", "max");
    revoke::print(&sluicegate, FEW_KEYS).await?;
    sluicegate.hold_keys(MANY_KEYS).await?;
    revoke::print(&sluicegate, MANY_KEYS).await?;
    println!("\n* p99 is the machine's more than Envoy's: everything shares its cores. Load now {}", load_average());
    Ok(())
}

fn plan(rounds: usize, millis: u64, per_request: usize) -> Plan {
    Plan { rounds, time: Duration::from_millis(millis), per_request }
}

/// A bare Envoy beside Sluicegate.
async fn pair(
    title: &str,
    bare: &Envoy,
    sluicegate: &Sluicegate,
    model: &str,
    size: usize,
    plan: Plan,
    others: &[u32],
) -> Result<()> {
    let request = sluicegate.request(model, size);
    let subjects = [("bare", bare), ("Sluicegate", &sluicegate.stack.envoy)].map(|(name, envoy)| Subject {
        name,
        to: envoy.addr(),
        request: request.clone(),
        envoy: Some(envoy.process().pid()),
    });
    compare(title, &subjects, plan, others).await
}

async fn print_environment() -> Result<()> {
    let output = tokio::process::Command::new(tools::envoy()).arg("--version").output().await?;
    let version = String::from_utf8_lossy(&output.stdout);
    // `<path>  version: <commit>/<version>/Clean/RELEASE/BoringSSL`
    let build = version.split_once("version: ").and_then(|(_, build)| build.split('/').nth(1));
    let envoy = build.context("`envoy --version` names a version")?;
    let cores = std::thread::available_parallelism()?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    println!("{cores} cores, Linux {}, Envoy {envoy}, load {}", kernel.trim(), load_average());
    Ok(())
}

/// Of the last 1, 5 and 15 minutes.
fn load_average() -> String {
    let all = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    all.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}
