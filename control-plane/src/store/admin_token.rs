//! Admin tokens: who may use the Admin API.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use super::noun::check_name;
use super::{Action, Fault, Store, StoreError, Write, WriteError, number};
use crate::credentials::{Secret, random};

const KIND: &str = "admin token";

/// Of a token that somebody else made.
const MIN_TOKEN_CHARS: usize = 16;

/// A token to be made.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAdminToken {
    /// Whose it is: it stands beside each change in the audit log.
    pub name: String,
}

/// A token as it is listed, without itself.
#[derive(Clone, Debug, Serialize, sqlx::FromRow, ToSchema)]
pub struct AdminToken {
    pub id: i32,
    pub name: String,
    pub created_at: DateTime<Utc>,
}

const LIST: &str = "select id, name, created_at from admin_token
     where ($1::int is null or id = $1) and id > $2 order by id limit $3";

impl Write {
    /// Makes a token, `sga-...`; returns its id and itself.
    ///
    /// # Errors
    /// A name that is taken.
    pub async fn create_admin_token(&mut self, new: &NewAdminToken) -> Result<(i32, Secret), WriteError> {
        check_name("name", &new.name, false)?;
        let token = Secret::new(format!("sga-{}", hex::encode(random::bytes::<32>()?)));
        Ok((self.insert_admin_token(&new.name, &token).await?, token))
    }

    /// Stores a token from the environment.
    ///
    /// # Errors
    /// One that is short enough to be guessed.
    pub(super) async fn seed_admin_token(&mut self, name: &str, token: &Secret) -> Result<(), WriteError> {
        if token.expose().chars().count() < MIN_TOKEN_CHARS {
            let message =
                format!("must have {MIN_TOKEN_CHARS} characters or more, such as `openssl rand -hex 32` makes");
            return Err(Fault::new("SLUICEGATE_ADMIN_TOKEN", message).into());
        }
        self.insert_admin_token(name, token).await.map(drop)
    }

    async fn insert_admin_token(&mut self, name: &str, token: &Secret) -> Result<i32, WriteError> {
        let id = sqlx::query_scalar("insert into admin_token (name, hash) values ($1, $2) returning id")
            .bind(name)
            .bind(Sha256::digest(token.expose().as_bytes()).to_vec())
            .fetch_one(self.conn())
            .await?;
        self.audit(Action::Create, KIND, name, json!({ "name": name }));
        Ok(id)
    }

    /// Deletes a token, by id or name; it is refused at once.
    ///
    /// # Errors
    /// Where there is none, or no other.
    pub async fn revoke_admin_token(&mut self, reference: &str) -> Result<(), WriteError> {
        // Of two that delete the last two, one waits and finds that it is the last.
        sqlx::query("lock table admin_token in share row exclusive mode").execute(self.conn()).await?;
        let found: Option<(i32, String)> =
            sqlx::query_as("select id, name from admin_token where id = $1 or name = $2")
                .bind(number::id(reference))
                .bind(reference)
                .fetch_optional(self.conn())
                .await?;
        let (id, name) = found.ok_or_else(|| WriteError::NotFound { kind: KIND, name: reference.to_owned() })?;
        let others: bool = sqlx::query_scalar("select exists (select from admin_token where id <> $1)")
            .bind(id)
            .fetch_one(self.conn())
            .await?;
        if !others {
            let message = format!("{name:?} is the last admin token; make another one first");
            return Err(WriteError::Conflict { field: String::new(), message });
        }
        sqlx::query("delete from admin_token where id = $1").bind(id).execute(self.conn()).await?;
        self.audit(Action::Delete, KIND, name, json!({}));
        Ok(())
    }
}

impl Store {
    /// Tokens in the order of their ids.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn admin_tokens(&self, after: i32, limit: u32) -> Result<Vec<AdminToken>, StoreError> {
        let tokens = sqlx::query_as(LIST).bind(None::<i32>).bind(after).bind(i64::from(limit));
        Ok(tokens.fetch_all(&self.pool).await?)
    }

    /// # Errors
    /// Where there is none.
    pub async fn admin_token(&self, id: i32) -> Result<AdminToken, WriteError> {
        let token = sqlx::query_as(LIST).bind(Some(id)).bind(0).bind(1_i64).fetch_optional(&self.pool).await?;
        token.ok_or(WriteError::NotFound { kind: KIND, name: id.to_string() })
    }

    /// The name of the admin token with this SHA-256. A look-up by hash tells nothing of the token by its time.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn admin_by_token(&self, hash: &[u8; 32]) -> Result<Option<String>, StoreError> {
        Ok(sqlx::query_scalar("select name from admin_token where hash = $1")
            .bind(hash.as_slice())
            .fetch_optional(&self.pool)
            .await?)
    }
}
