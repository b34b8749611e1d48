use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};

use super::client::Client;
use super::output::{Column, Output, json as as_json, note, print_once, text};

#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(super) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, clap::Subcommand)]
enum KeysCommand {
    /// Make a key; it is printed once, and nowhere kept
    Create(CreateArgs),
    /// List all keys
    List,
    /// Give a key a new secret; the old one is refused at once
    Rotate {
        /// Its id, public id, or <org>/<name>
        key: String,
    },
    /// Delete a key; it is refused at once
    Revoke {
        /// Its id, public id, or <org>/<name>
        key: String,
    },
}

#[derive(Debug, clap::Args)]
struct CreateArgs {
    /// Its name, unique in the org
    name: String,
    /// Whom it belongs to
    #[arg(long)]
    org: String,
    #[arg(long)]
    team: Option<String>,
    #[arg(long)]
    user: Option<String>,
    /// A model it may use; repeat for more [default: any]
    #[arg(long = "model", value_name = "MODEL")]
    models: Vec<String>,
    /// An address or network it may be used from; repeat for more [default: any]
    #[arg(long = "network", value_name = "CIDR")]
    networks: Vec<String>,
    /// When it ends, such as 2030-01-01T00:00:00Z [default: never]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<String>,
}

impl CreateArgs {
    fn body(self) -> Map<String, Value> {
        let mut body = Map::new();
        body.insert("name".to_owned(), json!(self.name));
        body.insert("org".to_owned(), json!(self.org));
        body.insert("networks".to_owned(), json!(self.networks));
        for (field, value) in [("team", self.team), ("user", self.user), ("expires_at", self.expires_at)] {
            if let Some(value) = value {
                body.insert(field.to_owned(), json!(value));
            }
        }
        if !self.models.is_empty() {
            body.insert("models".to_owned(), json!(self.models));
        }
        body
    }
}

const COLUMNS: &[Column] = &[
    ("KEY ID", |r| text(r, "key_id")),
    ("ORG", |r| text(r, "org")),
    ("NAME", |r| text(r, "name")),
    ("TEAM", |r| text(r, "team")),
    ("USER", |r| text(r, "user")),
    ("MODELS", |r| if r.get("models").is_none() { "any".to_owned() } else { text(r, "models") }),
    ("NETWORKS", |r| text(r, "networks")),
    ("EXPIRES", |r| text(r, "expires_at")),
    ("CREATED", |r| text(r, "created_at")),
    ("STATE", state),
];

/// Whether it is of use now.
fn state(key: &Value) -> String {
    let expires = text(key, "expires_at").parse::<DateTime<Utc>>();
    if key.get("disabled") == Some(&Value::Bool(true)) {
        "disabled".to_owned()
    } else if expires.is_ok_and(|at| at <= Utc::now()) {
        "expired".to_owned()
    } else {
        "active".to_owned()
    }
}

pub(super) async fn execute(args: KeysArgs, client: &Client, output: Output) -> anyhow::Result<()> {
    match args.command {
        KeysCommand::Create(create) => {
            issued(&client.post(&["v1", "keys"], &[], &create.body()).await?, output)?;
        }
        KeysCommand::List => output.rows(&client.list(&["v1", "keys"]).await?, COLUMNS)?,
        KeysCommand::Rotate { key } => {
            issued(&client.post(&["v1", "keys", &key, "rotate"], &[], &json!({})).await?, output)?;
        }
        KeysCommand::Revoke { key } => {
            client.delete(&["v1", "keys", &key]).await?;
            note(&format!("{key} is revoked"));
        }
    }
    Ok(())
}

/// The secret alone on standard output, so that a script can take it.
fn issued(answer: &Value, output: Output) -> anyhow::Result<()> {
    let key = format!("{}/{}", text(answer, "org"), text(answer, "name"));
    let lost = format!("the key exists, but its secret is lost: make a new one with `sluicegate keys rotate {key}`");
    match output {
        Output::Json => print_once(&as_json(answer), &lost),
        Output::Table => {
            print_once(&format!("{}\n", text(answer, "secret")), &lost)?;
            note(&format!("{key}: shown once, keep it"));
            Ok(())
        }
    }
}
