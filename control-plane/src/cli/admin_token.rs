use serde_json::json;

use super::client::Client;
use super::output::{Column, Output, json as as_json, note, print_once, text};

#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(super) struct AdminTokenArgs {
    #[command(subcommand)]
    command: AdminTokenCommand,
}

#[derive(Debug, clap::Subcommand)]
enum AdminTokenCommand {
    /// Make a token; it is printed once, and nowhere kept
    Create {
        /// Whose it is: the audit log says it beside each change
        name: String,
    },
    /// List all tokens
    List,
    /// Delete a token; it is refused at once. The last one cannot be deleted
    Revoke {
        /// Its id or name
        token: String,
    },
}

const COLUMNS: &[Column] =
    &[("ID", |r| text(r, "id")), ("NAME", |r| text(r, "name")), ("CREATED", |r| text(r, "created_at"))];

pub(super) async fn execute(args: AdminTokenArgs, client: &Client, output: Output) -> anyhow::Result<()> {
    match args.command {
        AdminTokenCommand::Create { name } => {
            let answer = client.post(&["v1", "admin-tokens"], &[], &json!({ "name": name })).await?;
            let lost = format!(
                "the token exists, but nobody has it: delete it with `sluicegate admin-token revoke {name}`, and make another"
            );
            match output {
                Output::Json => print_once(&as_json(&answer), &lost)?,
                Output::Table => {
                    print_once(&format!("{}\n", text(&answer, "token")), &lost)?;
                    note(&format!("{name}: shown once, keep it"));
                }
            }
        }
        AdminTokenCommand::List => output.rows(&client.list(&["v1", "admin-tokens"]).await?, COLUMNS)?,
        AdminTokenCommand::Revoke { token } => {
            client.delete(&["v1", "admin-tokens", &token]).await?;
            note(&format!("{token} is revoked"));
        }
    }
    Ok(())
}
