//! The commands.
//!
//! `serve`, `run` and `drain` are the processes; all else is a client of the Admin API, or needs nobody.

mod admin_token;
mod attach;
mod client;
mod doctor;
mod explain;
mod file;
mod input;
mod keyring;
mod keys;
mod nodes;
mod output;
mod usage;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{drain, run, serve, tls};
use client::ClientArgs;

/// An LLM gateway inside Envoy: keys, models, routing and metering in the data path, this control plane beside it.
#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, arg_required_else_help = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::RunArgs),
    Serve {
        #[command(flatten)]
        args: serve::ServeArgs,
        /// How log lines look; RUST_LOG says which there are
        #[arg(long, env = "SLUICEGATE_LOG_FORMAT", value_enum, default_value_t)]
        log_format: serve::log::LogFormat,
    },
    Drain(drain::DrainArgs),
    /// Make the store as a file says, in one commit or not at all
    Apply(WithClient<file::ApplyArgs>),
    /// Check a file without a control plane
    Validate(file::ValidateArgs),
    /// Print everything as a file, without secrets
    Export(WithClient<file::ExportArgs>),
    /// Keys that clients authenticate with
    Keys(WithClient<keys::KeysArgs>),
    /// Tokens that Envoys authenticate with
    Nodes(WithClient<nodes::NodesArgs>),
    /// Tokens that administrators authenticate with
    AdminToken(WithClient<admin_token::AdminTokenArgs>),
    /// What was used, and what it cost
    Usage(WithClient<usage::UsageArgs>),
    /// All attempts of one request: where it went, and why
    Explain(WithClient<explain::ExplainArgs>),
    /// Add to the ledger what only an Envoy's access log saw
    Reconcile(WithClient<usage::ReconcileArgs>),
    /// Check that the control plane works and its Envoys follow
    Doctor(WithClient<doctor::DoctorArgs>),
    /// Render what an Envoy of yours needs: the filter's entries, a route, the control plane's cluster
    Attach(attach::AttachArgs),
    /// The file under whose keys secrets in the database are sealed
    Keyring(keyring::KeyringArgs),
}

/// A command's own arguments beside those of the connection.
#[derive(Debug, clap::Args)]
struct WithClient<T: clap::Args> {
    #[command(flatten)]
    args: T,
    #[command(flatten)]
    client: ClientArgs,
}

/// Runs the command line; errors go to standard error.
pub async fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(help) => return shown(&help),
    };
    match execute(cli.command).await {
        Ok(code) => code,
        Err(error) => {
            output::note(&format!("sluicegate: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Help and version on standard output, what is wrong with the arguments on standard error.
fn shown(help: &clap::Error) -> ExitCode {
    match help.print() {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        _ => ExitCode::from(u8::try_from(help.exit_code()).unwrap_or(1)),
    }
}

async fn execute(command: Command) -> anyhow::Result<ExitCode> {
    tls::install_provider();
    match command {
        Command::Run(args) => run::run(args).await?,
        Command::Serve { args, log_format } => {
            serve::log::start(log_format);
            serve::run(args).await?;
        }
        Command::Drain(args) => {
            serve::log::start(serve::log::LogFormat::Text);
            drain::run(args).await?;
        }
        Command::Apply(c) => file::apply(&c.args, &c.client.connect()?, c.client.output).await?,
        Command::Validate(args) => file::validate(&args)?,
        Command::Export(c) => file::export(&c.client.connect()?, c.client.output).await?,
        Command::Keys(c) => keys::execute(c.args, &c.client.connect()?, c.client.output).await?,
        Command::Nodes(c) => nodes::execute(c.args, &c.client.connect()?, c.client.output).await?,
        Command::AdminToken(c) => admin_token::execute(c.args, &c.client.connect()?, c.client.output).await?,
        Command::Usage(c) => usage::usage(&c.args, &c.client.connect()?, c.client.output).await?,
        Command::Explain(c) => explain::explain(&c.args, &c.client.connect()?, c.client.output).await?,
        Command::Reconcile(c) => return usage::reconcile(&c.args, &c.client.connect()?, c.client.output).await,
        Command::Doctor(c) => return doctor::examine(&c.args, c.client.connect()).await,
        Command::Attach(args) => attach::execute(&args)?,
        Command::Keyring(args) => keyring::execute(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }
}
