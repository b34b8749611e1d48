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
/// How the gateway's own keys begin: one of them in `OPENAI_API_KEY` is for its clients, and not for OpenAI.
const OUR_KEYS: &str = "sk-sg-";
const OPENAI: &str = "quickstart-openai";
const OPENAI_MODEL: &str = "quickstart-gpt-4o-mini";
/// What OpenAI calls it.
const OPENAIS_MODEL: &str = "gpt-4o-mini";

/// What the requests are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model(pub String);

/// Puts the demo provider into the store. Leaves alone what else is there.
pub async fn apply_demo(admin: &admin::Service, provider: SocketAddr, credential: &Path) -> anyhow::Result<Model> {
    apply(admin, &demo_document(provider, credential)).await?;
    Ok(Model(demo::MODEL.to_owned()))
}

/// Puts OpenAI into the store; `None` where no key of theirs is set.
pub async fn apply_openai(admin: &admin::Service) -> anyhow::Result<Option<Model>> {
    if !std::env::var(OPENAI_KEY).is_ok_and(|key| is_openais(&key)) {
        return Ok(None);
    }
    apply(admin, &openai_document()).await?;
    Ok(Some(Model(OPENAI_MODEL.to_owned())))
}

fn is_openais(key: &str) -> bool {
    !key.is_empty() && !key.starts_with(OUR_KEYS)
}

async fn apply(admin: &admin::Service, document: &str) -> anyhow::Result<()> {
    let applied = admin.apply(ACTOR, &Document::parse(document)?, false, false).await;
    applied.map(drop).map_err(|error| match error.field().map(str::to_owned) {
        Some(field) => anyhow::Error::from(error).context(field),
        None => error.into(),
    })
}

fn demo_document(provider: SocketAddr, credential: &Path) -> String {
    let (chat, embed) = (demo::MODEL, demo::EMBEDDING_MODEL);
    let credential = credential.display();
    format!(
        r#"version: v1
providers:
- {{name: demo, dialect: openai, base_url: "http://{provider}/v1", allow_private: true}}
credentials:
- {{name: demo, provider: demo, source: "file:{credential}"}}
models:
- {{name: {chat}, targets: [{{provider: demo, model: {chat}, credential: demo}}]}}
- {{name: {embed}, targets: [{{provider: demo, model: {embed}, credential: demo}}]}}
prices:
- {{provider: demo, model: {chat}, input: "2.50", cache_read: "0.25", output: "10.00"}}
- {{provider: demo, model: {embed}, input: "0.02", output: "0"}}
orgs:
- {{name: {ORG}}}
"#
    )
}

/// Under names of its own: `openai` and `gpt-4o-mini` may be somebody's.
fn openai_document() -> String {
    format!(
        r#"version: v1
providers:
- {{name: {OPENAI}, dialect: openai, base_url: "https://api.openai.com/v1"}}
credentials:
- {{name: {OPENAI}, provider: {OPENAI}, source: "env:{OPENAI_KEY}"}}
models:
- {{name: {OPENAI_MODEL}, targets: [{{provider: {OPENAI}, model: {OPENAIS_MODEL}, credential: {OPENAI}}}]}}
prices:
- {{provider: {OPENAI}, model: {OPENAIS_MODEL}, input: "0.15", cache_read: "0.075", output: "0.60"}}
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
    fn the_documents_are_documents() {
        let demo = demo_document("127.0.0.1:1".parse().unwrap(), Path::new("/data/demo"));
        for text in [demo, openai_document()] {
            let document = Document::parse(&text).unwrap();
            document.check().unwrap();
            document.check_references().unwrap();
            let models = document.models.unwrap();
            assert!(models.iter().flat_map(|model| &model.targets).all(|target| target.credential.is_some()));
        }
    }

    #[test]
    fn our_own_key_is_not_openais() {
        assert!(is_openais("sk-proj-abc"));
        assert!(!is_openais("sk-sg-0000000000000000-00000000000000000000000000"));
        assert!(!is_openais(""));
    }
}
