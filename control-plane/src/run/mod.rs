//! The local all-in-one: Postgres, control plane, a provider and an Envoy, with one metered request to show for it.
//!
//! Everything secret is made on the first start and kept in the data directory, which only its owner may enter.

pub mod bootstrap;
pub mod child;
mod data;
mod demo;
pub mod envoy;
mod further;
mod local;
mod logfile;
pub mod ports;
pub mod postgres;
mod private;
mod report;
mod setup;
mod show;
pub mod tools;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;

use crate::serve::{log, stop_signal};
use crate::tls;
use data::Data;
use report::Report;

/// Runs everything on this machine: Postgres, control plane, Envoy and a demo provider; sends requests through it.
///
/// OPENAI_API_KEY adds the real one; the requests then go there.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Where state and secrets are kept
    #[arg(long, env = "SLUICEGATE_DATA", default_value = ".sluicegate")]
    pub data: PathBuf,
    /// A Postgres of yours (15 or newer) instead of one of our own
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<String>,
    /// End after the requests
    #[arg(long)]
    pub once: bool,
    /// Port that clients use [default: 10000, or a free one]
    #[arg(long, env = "SLUICEGATE_ENVOY_PORT")]
    pub envoy_port: Option<u16>,
    /// Port of Envoy's own admin page [default: 9901, or a free one]
    #[arg(long, env = "SLUICEGATE_ENVOY_ADMIN_PORT")]
    pub envoy_admin_port: Option<u16>,
    /// Port that Envoy reaches the control plane by [default: 18000, or a free one]
    #[arg(long, env = "SLUICEGATE_GRPC_PORT")]
    pub grpc_port: Option<u16>,
    /// Port of the Admin API [default: 18001, or a free one]
    #[arg(long, env = "SLUICEGATE_HTTP_PORT")]
    pub http_port: Option<u16>,
    /// Envoy's worker threads
    #[arg(long, default_value_t = 2)]
    pub workers: u32,
    /// Another filter than the one this was built with
    #[arg(long)]
    pub wasm: Option<PathBuf>,
}

/// `sluicegate run`: until SIGTERM, SIGINT or the death of a part; with `--once` until the requests are shown.
///
/// # Errors
/// With a message for whoever started it.
pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    tls::install_provider();
    let once = args.once;
    let report = Report::new();
    let data = Data::open(&args.data)?;
    // The terminal is for the report.
    let file = data.path("control-plane.log");
    let log = logfile::open(&file).with_context(|| file.display().to_string())?;
    log::start_to(log::LogFormat::Text, Arc::new(log));
    let mut parts = local::Parts::default();
    let ended = tokio::select! {
        shown = up(&mut parts, args, data.clone(), &report) => match shown {
            Ok(()) if once => Ok(()),
            Ok(()) => stay(&mut parts, &data, &report).await,
            Err(error) => Err(error),
        },
        signal = stop_signal() => {
            report.line(&format!("{signal}: stopping"));
            Ok(())
        }
    };
    parts.stop().await;
    ended
}

/// With `--once` requests that fail are an error; without it everything stays up for whoever looks into it.
async fn up(parts: &mut local::Parts, args: RunArgs, data: Data, report: &Report) -> anyhow::Result<()> {
    let once = args.once;
    let local = local::start(parts, args, data, report).await?;
    let shown = show::show(&local, report).await;
    match (&shown, once) {
        (_, true) => further::print_ended(&local, report),
        (Ok(shown), false) => further::print(&local, Some(shown), report),
        (Err(error), false) => {
            report.line(&format!("\n  no metered request to show: {error:#}"));
            further::print(&local, None, report);
        }
    }
    report.line(&format!("\n  all of it took {}", report::seconds(report.elapsed())));
    if once { shown.map(drop) } else { Ok(()) }
}

async fn stay(parts: &mut local::Parts, data: &Data, report: &Report) -> anyhow::Result<()> {
    report.line("\nEverything stays up until Ctrl-C.");
    tokio::select! {
        signal = stop_signal() => {
            report.line(&format!("\n{signal}: stopping"));
            Ok(())
        }
        died = parts.died(data) => anyhow::bail!("{died}"),
    }
}
