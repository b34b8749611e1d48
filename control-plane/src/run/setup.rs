//! What the local run configures: providers, a model, its price, an org and a key.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Context as _;
use zeroize::Zeroizing;

use super::data::Data;
use super::demo;
use crate::admin;
use crate::store::Document;
use crate::store::noun::Key;

/// Who did it, in the audit.
pub const ACTOR: &str = "local run";
const ORG: &str = "demo";
const KEY: &str = "quickstart";
const KEY_FILE: &str = "demo-key";
const OPENAI_KEY: &str = "OPENAI_API_KEY";
const OPENAI_MODEL: &str = "gpt-4o-mini";

/// What the requests are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model(pub String);

/// Puts the demo provider, and OpenAI where its key is set, into the store. Leaves alone what else is there.
pub async fn apply(admin: &admin::Service, provider: SocketAddr, credential: &Path) -> anyhow::Result<Model> {
    let real = std::env::var(OPENAI_KEY).is_ok_and(|key| !key.is_empty());
    let document = Document::parse(&document(provider, credential, real)).context("the demo document")?;
    admin.apply(ACTOR, &document, false, false).await.context("the demo document")?;
    Ok(Model(if real { OPENAI_MODEL.to_owned() } else { demo::MODEL.to_owned() }))
}

fn document(provider: SocketAddr, credential: &Path, real: bool) -> String {
    let (chat, embed) = (demo::MODEL, demo::EMBEDDING_MODEL);
    let credential = credential.display();
    let if_real = |line: &str| if real { format!("\n- {line}") } else { String::new() };
    let openai = if_real(r#"{name: openai, dialect: openai, base_url: "https://api.openai.com/v1"}"#);
    let openai_credential = if_real(&format!(r#"{{name: openai, provider: openai, source: "env:{OPENAI_KEY}"}}"#));
    let openai_model =
        if_real(&format!("{{name: {OPENAI_MODEL}, targets: [{{provider: openai, model: {OPENAI_MODEL}}}]}}"));
    let openai_price = if_real(&format!(
        r#"{{provider: openai, model: {OPENAI_MODEL}, input: "0.15", cache_read: "0.075", output: "0.60"}}"#
    ));
    format!(
        r#"version: v1
providers:
- {{name: demo, dialect: openai, base_url: "http://{provider}/v1", allow_private: true}}{openai}
credentials:
- {{name: demo, provider: demo, source: "file:{credential}"}}{openai_credential}
models:
- {{name: {chat}, targets: [{{provider: demo, model: {chat}}}]}}
- {{name: {embed}, targets: [{{provider: demo, model: {embed}}}]}}{openai_model}
prices:
- {{provider: demo, model: {chat}, input: "2.50", cache_read: "0.25", output: "10.00"}}
- {{provider: demo, model: {embed}, input: "0.02", output: "0"}}{openai_price}
orgs:
- {{name: {ORG}}}
"#
    )
}

/// The key that was kept, while the database knows it; otherwise a new secret for it.
pub async fn key(admin: &admin::Service, data: &Data) -> anyhow::Result<Zeroizing<String>> {
    let handle = format!("{ORG}/{KEY}");
    let known = match admin.get::<Key>(&handle).await {
        Ok(stored) => Some(stored.facts.key_id),
        Err(admin::Error::NotFound(_)) => None,
        Err(error) => return Err(error.into()),
    };
    if let (Some(kept), Some(id)) = (data.kept(KEY_FILE), &known)
        && kept.starts_with(&format!("sk-sg-{id}-"))
    {
        return Ok(kept);
    }
    let issued = match known {
        Some(_) => admin.rotate_key(ACTOR, &handle).await?,
        None => admin.create_key(ACTOR, &new_key()).await?,
    };
    let secret = Zeroizing::new(issued.secret.context("the store gave the key no secret")?);
    data.keep(KEY_FILE, &secret)?;
    Ok(secret)
}

fn new_key() -> Key {
    Key {
        org: ORG.to_owned(),
        name: KEY.to_owned(),
        team: None,
        user: None,
        models: None,
        networks: Vec::new(),
        expires_at: None,
        disabled: false,
        hash: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_is_one() {
        for real in [false, true] {
            let text = document("127.0.0.1:1".parse().unwrap(), Path::new("/data/demo"), real);
            let document = Document::parse(&text).unwrap();
            document.check().unwrap();
            document.check_references().unwrap();
            assert_eq!(document.providers.unwrap().len(), 1 + usize::from(real));
        }
    }
}
