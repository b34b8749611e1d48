use serde_json::{Value, json};

use super::client::{Client, items};
use super::output::{Column, Output, json as as_json, note, print_once, text};

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
    ("STATE", state),
];

/// Whether it reports, and whether it alone has its node id.
fn state(envoy: &Value) -> String {
    let is = |field: &str| envoy.get(field) == Some(&Value::Bool(true));
    match (is("live"), is("clash")) {
        (_, true) => "CLASH: another has this node id",
        (true, false) => "live",
        (false, false) => "gone",
    }
    .to_owned()
}

pub(super) async fn execute(args: NodesArgs, client: &Client, output: Output) -> anyhow::Result<()> {
    match args.command {
        NodesCommand::List => {
            let answer = client.get(&["v1", "envoys"], &[("limit", "1000")]).await?;
            output.rows(items(&answer, "items")?, ENVOYS)?;
        }
        NodesCommand::Token(TokenCommand::Create { name, group, expires_at }) => {
            let body = json!({ "name": name, "group": group, "expires_at": expires_at });
            let answer = client.post(&["v1", "node-tokens"], &[], &body).await?;
            let lost = format!(
                "the token exists, but nobody has it: end it with `sluicegate nodes token revoke {name}`, and make one of \
                 another name"
            );
            match output {
                Output::Json => print_once(&as_json(&answer), &lost)?,
                Output::Table => {
                    let (token, seal_key) = (text(&answer, "token"), text(&answer, "seal_key"));
                    print_once(&format!("SLUICEGATE_NODE_TOKEN={token}\nSLUICEGATE_SEAL_KEY={seal_key}\n"), &lost)?;
                    note(&format!("{name}: shown once, keep them"));
                }
            }
        }
        NodesCommand::Token(TokenCommand::List) => output.rows(&client.list(&["v1", "node-tokens"]).await?, TOKENS)?,
        NodesCommand::Token(TokenCommand::Revoke { token }) => {
            client.delete(&["v1", "node-tokens", &token]).await?;
            note(&format!("{token} is revoked"));
        }
    }
    Ok(())
}
