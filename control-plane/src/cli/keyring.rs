use std::path::PathBuf;

use super::output::note;
use crate::credentials::Keyring;

#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(super) struct KeyringArgs {
    #[command(subcommand)]
    command: KeyringCommand,
}

#[derive(Debug, clap::Subcommand)]
enum KeyringCommand {
    /// Write a new keyring to a file that does not exist yet
    Create { path: PathBuf },
}

pub(super) fn execute(args: &KeyringArgs) -> anyhow::Result<()> {
    let KeyringCommand::Create { path } = &args.command;
    Keyring::create(path)?;
    let path = path.display();
    note(&format!("{path}: keep a copy apart from the database's backups; without it stored secrets are lost"));
    Ok(())
}
