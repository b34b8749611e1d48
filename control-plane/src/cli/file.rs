use std::path::{Path, PathBuf};

use anyhow::bail;
use serde_json::Value;

use super::client::{Client, items};
use super::input;
use super::output::{Output, json as as_json, note, print, print_once, text};
use crate::store::noun;
use crate::store::{Document, Fault};

#[derive(Debug, clap::Args)]
pub(super) struct ApplyArgs {
    /// The file, YAML or JSON; - for standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Delete what a section of the file does not name; sections that are absent stay
    #[arg(long)]
    prune: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ValidateArgs {
    /// The file, YAML or JSON; - for standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// The file may refer to what only the control plane knows
    #[arg(long)]
    partial: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct ExportArgs {}

/// Four times what a control plane takes in one call.
const MAX_FILE_BYTES: u64 = 64 << 20;

fn read(path: &Path) -> anyhow::Result<Document> {
    let text = input::text(path, MAX_FILE_BYTES)?;
    Document::parse(&text).and_then(|document| document.check().map(|()| document)).map_err(|e| in_file(path, &e))
}

fn in_file(path: &Path, fault: &Fault) -> anyhow::Error {
    match fault.field.as_str() {
        "" => anyhow::anyhow!("{}: {}", path.display(), fault.message),
        field => anyhow::anyhow!("{}: {field}: {}", path.display(), fault.message),
    }
}

pub(super) fn validate(args: &ValidateArgs) -> anyhow::Result<()> {
    let document = read(&args.file)?;
    if !args.partial {
        document.check_references().map_err(|e| in_file(&args.file, &e))?;
    }
    note(&format!("{}: good", args.file.display()));
    Ok(())
}

pub(super) async fn apply(args: &ApplyArgs, client: &Client, output: Output) -> anyhow::Result<()> {
    let document = body(&read(&args.file)?)?;
    let flag = |set: bool| if set { "true" } else { "false" };
    let query = [("dry_run", flag(args.dry_run)), ("prune", flag(args.prune))];
    let outcome = client.post(&["v1", "apply"], &query, &document).await?;
    let (changes, keys) = (items(&outcome, "changes")?, items(&outcome, "keys")?);
    let told = match output {
        Output::Json => as_json(&outcome),
        Output::Table => {
            let secret = |key: &Value| format!("{} {}\n", text(key, "key"), text(key, "secret"));
            changes.iter().map(line).chain(keys.iter().map(secret)).collect()
        }
    };
    if keys.is_empty() {
        print(&told)?;
    } else {
        print_once(&told, &lost(keys))?;
    }
    if output == Output::Table {
        note(&match outcome.get("revision").and_then(Value::as_i64) {
            _ if changes.is_empty() => "nothing to change".to_owned(),
            Some(revision) => format!("{} changes, revision {revision}", changes.len()),
            None => format!("{} changes, not made (dry run)", changes.len()),
        });
    }
    Ok(())
}

/// What to do about keys whose secrets nobody got.
fn lost(keys: &[Value]) -> String {
    let all: Vec<String> = keys.iter().map(|key| text(key, "key")).collect();
    format!(
        "the changes are made, but the secrets of new keys are lost: make new ones with `sluicegate keys rotate` for {}",
        all.join(", ")
    )
}

/// What is sent holds what the document does not show again.
fn body(document: &Document) -> anyhow::Result<Value> {
    let mut body = serde_json::to_value(document)?;
    for (i, key) in document.keys.iter().flatten().enumerate() {
        let Some(hash) = &key.hash else { continue };
        match body.pointer_mut(&format!("/keys/{i}")).and_then(Value::as_object_mut) {
            Some(fields) => drop(fields.insert("hash".to_owned(), hash.clone().into())),
            None => bail!("keys[{i}] was lost"),
        }
    }
    Ok(body)
}

/// `+ model gpt-4o`, `~ price openai/gpt-4o: input "2.50" -> "3.00"`, `- key acme/ci`
fn line(change: &Value) -> String {
    let sign = match text(change, "action").as_str() {
        "create" => '+',
        "delete" => '-',
        _ => '~',
    };
    let mut line = format!("{sign} {} {}", text(change, "kind"), text(change, "name"));
    let fields = change.get("fields").and_then(Value::as_object);
    for (i, (field, values)) in fields.into_iter().flatten().enumerate() {
        line.push_str(if i == 0 { ": " } else { ", " });
        match (values.get("from"), values.get("to")) {
            (Some(from), Some(to)) => line.push_str(&format!("{field} {from} -> {to}")),
            _ => line.push_str(&format!("{field} replaced")),
        }
    }
    line.push('\n');
    line
}

pub(super) async fn export(client: &Client, output: Output) -> anyhow::Result<()> {
    let document = client.get(&["v1", "export"], &[]).await?;
    print(&match output {
        Output::Json => as_json(&document),
        // As a document its sections keep their order.
        Output::Table => serde_norway::to_string(&noun::parse::<Document>(document)?)?,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_one_line() {
        let fields = json!({"input": {"from": "2.50", "to": "3.00"}, "secret": "replaced"});
        let change = json!({"action": "update", "kind": "price", "name": "openai/x", "fields": fields});
        assert_eq!(line(&change), "~ price openai/x: input \"2.50\" -> \"3.00\", secret replaced\n");
        assert_eq!(line(&json!({"action": "create", "kind": "org", "name": "acme"})), "+ org acme\n");
    }

    #[test]
    fn a_hash_is_sent_along() {
        let text = format!("{{version: v1, keys: [{{org: a, name: k, hash: {}}}]}}", "ab".repeat(32));
        let document = Document::parse(&text).unwrap();
        assert_eq!(body(&document).unwrap().pointer("/keys/0/hash"), Some(&json!("ab".repeat(32))));
    }
}
