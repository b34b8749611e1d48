//! The process's own log.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Without `RUST_LOG`. What Postgres remarks on the way is no news.
const USUAL: &str = "info,sqlx::postgres::notice=warn";

/// Starts logging to standard error. `RUST_LOG` says what (`sluicegate=debug`); without it, from `info` on.
pub fn start(format: LogFormat) {
    start_to(format, std::io::stderr);
}

/// Starts logging to somewhere else.
pub fn start_to<W>(format: LogFormat, to: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(USUAL));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(to).with_ansi(false);
    // Started already, by another test of this process: leave it.
    let _ = match format {
        LogFormat::Text => log.with_target(false).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}
