//! Node tokens: who an Envoy is.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use super::noun::{Group, Noun as _, check_name};
use super::{Action, Fault, Store, StoreError, Write, WriteError, number};
use crate::credentials::{Keyring, KeyringError, Secret, random};

pub(super) const KIND: &str = "node token";

/// A token to be made.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewNodeToken {
    pub name: String,
    /// What its Envoys may hold. Absent: `default`.
    #[serde(default = "default_group")]
    pub group: String,
    #[serde(default, deserialize_with = "super::time::optional")]
    pub expires_at: Option<DateTime<Utc>>,
}

fn default_group() -> String {
    super::noun::DEFAULT_GROUP.to_owned()
}

/// A token as it is listed, without itself.
#[derive(Clone, Debug, Serialize, sqlx::FromRow, ToSchema)]
pub struct NodeToken {
    pub id: i32,
    pub name: String,
    pub group: String,
    pub expires_at: Option<DateTime<Utc>>,
    pub revoked_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
}

/// A new token, shown once.
#[derive(Debug)]
pub struct IssuedToken {
    pub id: i32,
    /// `sgn-...`, for the Envoy's `SLUICEGATE_NODE_TOKEN`.
    pub token: Secret,
    /// 64 hex digits, for the Envoy's `SLUICEGATE_SEAL_KEY`.
    pub seal_key: Secret,
}

/// The holder of a valid node token.
#[derive(Debug)]
pub struct Node {
    pub token_id: i32,
    pub token_name: String,
    pub group_id: i32,
    pub group: String,
    hash: Vec<u8>,
    sealed_seal_key: Vec<u8>,
}

impl Node {
    /// The key under which credentials are sealed for this node.
    ///
    /// # Errors
    /// When the keyring is another one.
    pub fn seal_key(&self, keyring: &Keyring) -> Result<Zeroizing<[u8; 32]>, KeyringError> {
        let bytes = keyring.open(&self.sealed_seal_key, &context(&self.hash))?;
        Ok(Zeroizing::new(bytes.as_slice().try_into().map_err(|_| KeyringError::Forged)?))
    }
}

fn context(hash: &[u8]) -> String {
    format!("node token {}", hex::encode(hash))
}

const LIST: &str = "select t.id, t.name, g.name as group, t.expires_at, t.revoked_at, t.created_at
     from node_token t join envoy_group g on g.id = t.group_id
     where ($1::int is null or t.id = $1) and t.id > $2 order by t.id limit $3";

impl Write {
    /// Makes a token and the seal key that belongs to it.
    ///
    /// # Errors
    /// A name that is taken, a group that is not.
    pub async fn create_node_token(&mut self, new: &NewNodeToken) -> Result<IssuedToken, WriteError> {
        let token = Secret::new(format!("sgn-{}", hex::encode(random::bytes::<32>()?)));
        let seal_key = Secret::new(hex::encode(random::bytes::<32>()?));
        let id = self.store_node_token(new, &token, &seal_key).await?;
        Ok(IssuedToken { id, token, seal_key })
    }

    pub(super) async fn store_node_token(
        &mut self,
        new: &NewNodeToken,
        token: &Secret,
        seal_key: &Secret,
    ) -> Result<i32, WriteError> {
        check_name("name", &new.name, false)?;
        let group = Group::find(self.conn(), &new.group).await?;
        let group = group.ok_or_else(|| Fault::new("group", format!("no group is named {:?}", new.group)))?;
        let key = hex::decode(seal_key.expose()).ok().filter(|key| key.len() == 32).map(Zeroizing::new);
        let key = key.ok_or_else(|| Fault::new("seal_key", "must be 64 hex digits"))?;
        let hash = Sha256::digest(token.expose().as_bytes()).to_vec();
        let sealed = self.keyring().seal(&key, &context(&hash))?;
        let id = sqlx::query_scalar(
            "insert into node_token (name, group_id, hash, seal_key, expires_at) values ($1, $2, $3, $4, $5) returning id",
        )
        .bind(&new.name)
        .bind(group)
        .bind(hash)
        .bind(sealed)
        .bind(new.expires_at)
        .fetch_one(self.conn())
        .await?;
        let detail = json!({ "name": new.name, "group": new.group, "expires_at": new.expires_at });
        self.audit(Action::Create, KIND, &new.name, detail);
        Ok(id)
    }

    /// Ends a token, by id or name. Ending it again changes nothing.
    ///
    /// # Errors
    /// Where there is none.
    pub async fn revoke_node_token(&mut self, reference: &str) -> Result<(), WriteError> {
        let found: Option<(i32, String, Option<DateTime<Utc>>)> =
            sqlx::query_as("select id, name, revoked_at from node_token where id = $1 or name = $2 for update")
                .bind(number::id(reference))
                .bind(reference)
                .fetch_optional(self.conn())
                .await?;
        let not_found = || WriteError::NotFound { kind: KIND, name: reference.to_owned() };
        let (id, name, revoked_at) = found.ok_or_else(not_found)?;
        if revoked_at.is_none() {
            sqlx::query("update node_token set revoked_at = now() where id = $1").bind(id).execute(self.conn()).await?;
            self.audit(Action::Delete, KIND, name, json!({}));
        }
        Ok(())
    }
}

impl Store {
    /// Tokens, revoked ones too, in the order of their ids.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn node_tokens(&self, after: i32, limit: u32) -> Result<Vec<NodeToken>, StoreError> {
        let tokens = sqlx::query_as(LIST).bind(None::<i32>).bind(after).bind(i64::from(limit));
        Ok(tokens.fetch_all(&self.pool).await?)
    }

    /// # Errors
    /// Where there is none.
    pub async fn node_token(&self, id: i32) -> Result<NodeToken, WriteError> {
        let token = sqlx::query_as(LIST).bind(Some(id)).bind(0).bind(1_i64).fetch_optional(&self.pool).await?;
        token.ok_or(WriteError::NotFound { kind: KIND, name: id.to_string() })
    }

    /// Who presents a token with this SHA-256; `None` where it is unknown, expired or revoked.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn node_by_token(&self, hash: &[u8; 32]) -> Result<Option<Node>, StoreError> {
        let row: Option<(i32, String, i32, String, Vec<u8>)> = sqlx::query_as(
            "select t.id, t.name, g.id, g.name, t.seal_key from node_token t join envoy_group g on g.id = t.group_id
             where t.hash = $1 and t.revoked_at is null and (t.expires_at is null or t.expires_at > now())",
        )
        .bind(hash.as_slice())
        .fetch_optional(&self.pool)
        .await?;
        let node = |(token_id, token_name, group_id, group, sealed_seal_key)| Node {
            token_id,
            token_name,
            group_id,
            group,
            hash: hash.to_vec(),
            sealed_seal_key,
        };
        Ok(row.map(node))
    }
}
