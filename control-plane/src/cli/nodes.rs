use serde_json::json;

use super::client::Client;
use super::output::{Column, Output, print, text};

#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(super) struct NodesArgs {
    #[command(subcommand)]
    command: NodesCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NodesCommand {
    /// List the Envoys that were seen
    List,
    /// Tokens by which Envoys are known
    #[command(subcommand)]
    Token(TokenCommand),
}

#[derive(Debug, clap::Subcommand)]
enum TokenCommand {
    /// Make a token and its seal key; they are printed once, as environment variables for an Envoy
    Create {
        name: String,
        /// What its Envoys may hold
        #[arg(long, default_value = "default")]
        group: String,
        /// When it ends, such as 2030-01-01T00:00:00Z [default: never]
        #[arg(long, value_name = "TIME")]
        expires_at: Option<String>,
    },
    /// List all tokens
    List,
    /// End a token
    Revoke {
        /// Its id or name
        token: String,
    },
}

const TOKENS: &[Column] = &[
    ("ID", |r| text(r, "id")),
    ("NAME", |r| text(r, "name")),
    ("GROUP", |r| text(r, "group")),
    ("EXPIRES", |r| text(r, "expires_at")),
    ("REVOKED", |r| text(r, "revoked_at")),
    ("CREATED", |r| text(r, "created_at")),
];

const ENVOYS: &[Column] = &[
    ("NODE", |r| text(r, "node")),
    ("GROUP", |r| text(r, "group")),
    ("ENVOY", |r| text(r, "envoy_version")),
    ("FILTER", |r| text(r, "filter_version")),
    ("READY", |r| text(r, "ready")),
    ("POLICY", |r| text(r, "policy_revision")),
    ("KEYS", |r| text(r, "key_revision")),
    ("REFUSED", |r| text(r, "refused_field")),
    ("LAST SEEN", |r| text(r, "last_seen")),
];

pub(super) async fn execute(args: NodesArgs, client: &Client, output: Output) -> anyhow::Result<()> {
    match args.command {
        NodesCommand::List => {
            let answer = client.get(&["v1", "envoys"], &[("limit", "1000")]).await?;
            let envoys = answer.get("items").and_then(|items| items.as_array());
            output.rows(envoys.map(Vec::as_slice).unwrap_or_default(), ENVOYS);
        }
        NodesCommand::Token(TokenCommand::Create { name, group, expires_at }) => {
            let body = json!({ "name": name, "group": group, "expires_at": expires_at });
            let answer = client.post(&["v1", "node-tokens"], &[], &body).await?;
            match output {
                Output::Json => output.value(&answer),
                Output::Table => {
                    let (token, seal_key) = (text(&answer, "token"), text(&answer, "seal_key"));
                    print(&format!("SLUICEGATE_NODE_TOKEN={token}\nSLUICEGATE_SEAL_KEY={seal_key}\n"));
                    eprintln!("{name}: shown once, keep them");
                }
            }
        }
        NodesCommand::Token(TokenCommand::List) => output.rows(&client.list(&["v1", "node-tokens"]).await?, TOKENS),
        NodesCommand::Token(TokenCommand::Revoke { token }) => {
            client.delete(&["v1", "node-tokens", &token]).await?;
            eprintln!("{token} is revoked");
        }
    }
    Ok(())
}
