use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::super::{Fault, Write, WriteError, slot};
use super::{Noun, Stored, Which, check_length, check_name, refer};
use crate::credentials::{Secret, Source};

/// What pays at a provider: its API key, kept here under the keyring or read where it is.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Credential {
    pub name: String,
    pub provider: String,
    /// `stored`, `env:<NAME>` or `file:<absolute path>`; the last two are of the control plane and read when needed.
    #[serde(default)]
    #[schema(value_type = String, default = "stored")]
    pub source: Source,
    /// The API key itself, where it is stored. Never shown again.
    #[serde(default, skip_serializing)]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<Secret>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct CredentialFacts {
    /// Of the write that last changed it.
    pub revision: i64,
}

/// How many credentials an Envoy can hold. The place of one is its id modulo this, and no two that exist share a place.
pub const CREDENTIAL_SLOTS: i32 = 4096;

/// A path's worth.
const MAX_SOURCE_BYTES: usize = 4096;

/// Serialises the writers that add a credential.
const LOCK: i64 = 0x6372_6564_656e_7469;

/// What a sealed credential is bound to.
pub(crate) fn context(id: u32) -> String {
    format!("credential {id}")
}

const PROVIDER: &str = "select id from provider where name = $1";

impl Credential {
    fn sealed(&self, write: &Write, id: i32) -> Result<Option<Vec<u8>>, WriteError> {
        match &self.secret {
            Some(secret) => Ok(Some(write.keyring().seal(secret.expose().as_bytes(), &context(id.cast_unsigned()))?)),
            None => Ok(None),
        }
    }
}

/// An id for a new credential. Until the end of the write no other one gets any, so that two never share a place.
async fn free_id(conn: &mut PgConnection) -> Result<i32, WriteError> {
    sqlx::query("select pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *conn).await?;
    let taken: Vec<i32> =
        sqlx::query_scalar("select id % $1 from credential").bind(CREDENTIAL_SLOTS).fetch_all(&mut *conn).await?;
    let id = slot::next_free(conn, "credential_id_seq", CREDENTIAL_SLOTS, &taken.into_iter().collect()).await?;
    id.ok_or_else(|| {
        let message = format!("there are {CREDENTIAL_SLOTS} credentials, as many as an Envoy holds; delete one first");
        WriteError::Conflict { field: String::new(), message }
    })
}

impl Noun for Credential {
    const KIND: &'static str = "credential";
    const HOLD: &'static str = "select from credential where id = $1 for no key update";
    type Facts = CredentialFacts;

    fn handle(&self) -> String {
        self.name.clone()
    }

    fn check(&self) -> Result<(), Fault> {
        check_name("name", &self.name, false)?;
        check_length("source", &self.source.to_string(), MAX_SOURCE_BYTES)?;
        let fault = match (&self.source, &self.secret) {
            (Source::Stored, Some(secret)) if !secret.is_header_safe() => {
                "must be one line of visible ASCII, 8192 bytes at most, as it becomes a header"
            }
            (Source::Env(_) | Source::File(_), Some(_)) => "stands beside a source that is not `stored`",
            _ => return Ok(()),
        };
        Err(Fault::new("secret", fault))
    }

    async fn hidden_change(_conn: &mut PgConnection, _id: i32, new: &Self) -> sqlx::Result<bool> {
        Ok(new.secret.is_some())
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        Ok(sqlx::query_scalar("select id from credential where name = $1").bind(handle).fetch_optional(conn).await?)
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<(i32, String, String, String, i64, chrono::DateTime<chrono::Utc>)> = sqlx::query_as(
            "select c.id, c.name, p.name, c.source, c.revision, c.created_at
             from credential c join provider p on p.id = c.provider_id
             where ($1::int is null or c.id = $1) and c.id > $2 order by c.id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(conn)
        .await?;
        let stored = |(id, name, provider, source, revision, created_at): (_, _, _, String, _, _)| {
            let source = source.parse().map_err(|e| sqlx::Error::Decode(Box::new(e)))?;
            let noun = Self { name, provider, source, secret: None };
            Ok(Stored { id, noun, facts: CredentialFacts { revision }, created_at })
        };
        rows.into_iter().map(stored).collect()
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        if self.source == Source::Stored && self.secret.is_none() {
            return Err(Fault::new("secret", "is missing: the source is `stored`").into());
        }
        let provider = refer(write.conn(), PROVIDER, "provider", "provider", &self.provider).await?;
        // The id comes first, because the secret is sealed for it.
        let id = free_id(write.conn()).await?;
        let sealed = self.sealed(write, id)?;
        sqlx::query(
            "insert into credential (id, provider_id, name, source, sealed) overriding system value
             values ($1, $2, $3, $4, $5)",
        )
        .bind(id)
        .bind(provider)
        .bind(&self.name)
        .bind(self.source.to_string())
        .bind(sealed)
        .execute(write.conn())
        .await?;
        write.credential_changed(id);
        write.policy_changed();
        Ok(id)
    }

    async fn update(&self, write: &mut Write, id: i32, old: &Self) -> Result<(), WriteError> {
        if self.source == Source::Stored && old.source != Source::Stored && self.secret.is_none() {
            return Err(Fault::new("secret", "is missing: the source becomes `stored`").into());
        }
        let provider = refer(write.conn(), PROVIDER, "provider", "provider", &self.provider).await?;
        let sealed = self.sealed(write, id)?;
        sqlx::query(
            "update credential set provider_id = $2, name = $3, source = $4,
                 sealed = case when $4 <> 'stored' then null else coalesce($5, sealed) end
             where id = $1",
        )
        .bind(id)
        .bind(provider)
        .bind(&self.name)
        .bind(self.source.to_string())
        .bind(sealed)
        .execute(write.conn())
        .await?;
        write.credential_changed(id);
        write.policy_changed();
        Ok(())
    }

    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        write.policy_changed();
        write.credential_gone();
        sqlx::query("delete from credential where id = $1").bind(id).execute(write.conn()).await?;
        Ok(())
    }
}
