//! The process's own log, on standard error.

use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// Starts logging. `RUST_LOG` says what (`sluicegate=debug`); without it, `default`.
pub fn start(format: LogFormat, default: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Started already, by another test of this process: leave it.
    let _ = match format {
        LogFormat::Text => log.with_target(false).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}
