//! What a database needs before anyone can talk to it: a keyring that fits, and the first tokens.

use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use super::node_token::NewNodeToken;
use super::noun::DEFAULT_GROUP;
use super::{Action, Store, WriteError};
use crate::credentials::{Keyring, KeyringError, Secret, random};

/// Tokens for a database that has none, from the environment.
#[derive(Debug, Default)]
pub struct Seeds {
    /// `SLUICEGATE_ADMIN_TOKEN`
    pub admin_token: Option<Secret>,
    /// `SLUICEGATE_NODE_TOKEN`
    pub node_token: Option<Secret>,
    /// `SLUICEGATE_SEAL_KEY`, 64 hex digits; one nobody knows where absent, and then the seeded node gets no credential.
    pub seal_key: Option<Secret>,
}

impl Seeds {
    /// From the process's environment; empty values are none.
    pub fn from_env() -> Self {
        let secret = |name| std::env::var(name).ok().filter(|text| !text.is_empty()).map(Secret::new);
        Self {
            admin_token: secret("SLUICEGATE_ADMIN_TOKEN"),
            node_token: secret("SLUICEGATE_NODE_TOKEN"),
            seal_key: secret("SLUICEGATE_SEAL_KEY"),
        }
    }
}

const SEED: &str = "seed";
/// What the check value says, under the context of the same name.
const CHECK: &str = "keyring check";

impl Store {
    /// Makes sure that `keyring` is the one this database was sealed under; the first one to come is.
    ///
    /// # Errors
    /// [`KeyringError::NotOfThisDatabase`] where it is another one.
    pub async fn check_keyring(&self, keyring: &Keyring) -> Result<(), WriteError> {
        sqlx::query("insert into keyring_check (sealed) values ($1) on conflict do nothing")
            .bind(keyring.seal(CHECK.as_bytes(), CHECK)?)
            .execute(&self.pool)
            .await?;
        let sealed: Vec<u8> =
            sqlx::query_scalar("select sealed from keyring_check where one").fetch_one(&self.pool).await?;
        keyring.open(&sealed, CHECK).map_err(|_| KeyringError::NotOfThisDatabase)?;
        Ok(())
    }

    /// Gives a database without admin tokens or node tokens those of `seeds`, and one without a policy an empty one. Others'
    /// tokens are left alone.
    ///
    /// # Errors
    /// An admin token that is too short, a seal key that is none; the database away.
    pub async fn seed(&self, seeds: &Seeds, keyring: &Arc<Keyring>) -> Result<(), WriteError> {
        let mut write = self.begin(SEED, keyring).await?;
        // Replicas that start at once wait for each other here.
        sqlx::query("lock table admin_token, node_token in share row exclusive mode").execute(write.conn()).await?;
        let (admins, nodes): (bool, bool) =
            sqlx::query_as("select exists (select from admin_token), exists (select from node_token)")
                .fetch_one(write.conn())
                .await?;
        if let (Some(token), false) = (&seeds.admin_token, admins) {
            write.seed_admin_token(SEED, token).await?;
        }
        if let (Some(token), false) = (&seeds.node_token, nodes) {
            let new = NewNodeToken { name: SEED.to_owned(), group: DEFAULT_GROUP.to_owned(), expires_at: None };
            let unknown = Secret::new(hex::encode(random::bytes::<32>()?));
            write.store_node_token(&new, token, seeds.seal_key.as_ref().unwrap_or(&unknown)).await?;
        }
        // An Envoy is ready with a policy, be it one without any model.
        let has_policy: bool = sqlx::query_scalar("select exists (select from policy)").fetch_one(write.conn()).await?;
        if !has_policy {
            write.policy_changed();
            write.audit(Action::Create, "policy", "first", json!({}));
        }
        write.commit().await?;
        if seeds.admin_token.is_none() && !admins {
            tracing::warn!(
                "nobody can administer this gateway: its database has no admin token; \
                 set SLUICEGATE_ADMIN_TOKEN (16 characters or more) and start again"
            );
        }
        if let (Some(token), true) = (&seeds.admin_token, admins) {
            let hash = Sha256::digest(token.expose().as_bytes()).into();
            if self.admin_by_token(&hash).await?.is_none() {
                tracing::warn!("SLUICEGATE_ADMIN_TOKEN is not a token of this database, which has others already");
            }
        }
        Ok(())
    }
}
