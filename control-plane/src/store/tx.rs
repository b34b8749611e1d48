//! The write transaction. Nothing else bumps the revision.

use std::sync::Arc;

use serde_json::Value;
use sqlx::{PgConnection, Postgres, Transaction};

use super::{Store, WriteError, block, policy};
use crate::credentials::{Keyring, Secret};

/// One write: some changes, their audit rows and, last, the revision counter.
///
/// Dropped without [`Write::commit`], it never happened. The counter's row is locked as late as possible and until the
/// commit, so that commit order is revision order; what has to be right across writers (the policy) is read under it.
#[derive(Debug)]
pub struct Write {
    tx: Transaction<'static, Postgres>,
    actor: String,
    keyring: Arc<Keyring>,
    audit: Vec<(Action, &'static str, String, Value)>,
    prefixes: Vec<i32>,
    credentials: Vec<i32>,
    scopes: Vec<i32>,
    policy: bool,
    blocks: bool,
    credentials_gone: bool,
    issued: Vec<Issued>,
}

/// What an audit row says was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Create,
    Update,
    Delete,
    Block,
    Unblock,
    Rotate,
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Block => "block",
            Self::Unblock => "unblock",
            Self::Rotate => "rotate",
        }
    }
}

/// A key that this write made, shown once.
#[derive(Debug)]
pub struct Issued {
    /// `<org>/<name>`.
    pub key: String,
    pub secret: Secret,
}

impl Store {
    /// Begins a write in the name of `actor`.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn begin(&self, actor: &str, keyring: &Arc<Keyring>) -> Result<Write, WriteError> {
        Ok(Write {
            tx: self.pool.begin().await?,
            actor: actor.to_owned(),
            keyring: Arc::clone(keyring),
            audit: Vec::new(),
            prefixes: Vec::new(),
            credentials: Vec::new(),
            scopes: Vec::new(),
            policy: false,
            blocks: false,
            credentials_gone: false,
            issued: Vec::new(),
        })
    }
}

impl Write {
    pub(super) fn conn(&mut self) -> &mut PgConnection {
        &mut self.tx
    }

    pub(super) fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Notes what was done. `detail` holds no secret.
    pub(super) fn audit(&mut self, action: Action, kind: &'static str, object: impl Into<String>, detail: Value) {
        self.audit.push((action, kind, object.into(), detail));
    }

    /// Providers, models, prices or credentials changed: the policy is built again.
    pub(super) fn policy_changed(&mut self) {
        self.policy = true;
    }

    /// Keys changed, given by the first four bytes of their hashes.
    pub(super) fn keys_changed(&mut self, prefixes: impl IntoIterator<Item = i32>) {
        self.prefixes.extend(prefixes);
    }

    /// What this group's Envoys may hold changed: they are told everything anew, by way of the policy.
    pub(super) fn scope_changed(&mut self, group: i32) {
        self.scopes.push(group);
    }

    pub(super) fn blocks_changed(&mut self) {
        self.blocks = true;
    }

    pub(super) fn credential_changed(&mut self, id: i32) {
        self.credentials.push(id);
    }

    pub(super) fn credential_gone(&mut self) {
        self.credentials_gone = true;
    }

    pub(super) fn issue(&mut self, key: String, secret: Secret) {
        self.issued.push(Issued { key, secret });
    }

    /// The keys made so far, to be shown once the write is committed.
    pub fn take_issued(&mut self) -> Vec<Issued> {
        std::mem::take(&mut self.issued)
    }

    /// Checks everything a commit would check, and undoes the write.
    ///
    /// # Errors
    /// Those of [`Write::commit`].
    pub async fn dry_run(mut self) -> Result<(), WriteError> {
        if self.policy {
            let next = self.lock().await?;
            policy::rebuild(&mut self.tx, next).await?;
        }
        Ok(self.tx.rollback().await?)
    }

    /// Commits and returns the revision; a write that changed nothing takes none and returns the current one.
    ///
    /// # Errors
    /// [`WriteError::Invalid`] where the policy that results is refused; its field names the noun. [`WriteError::Conflict`]
    /// where more owners would be blocked than Envoys hold.
    pub async fn commit(mut self) -> Result<i64, WriteError> {
        if self.audit.is_empty() {
            let current =
                sqlx::query_scalar("select revision from revision where one").fetch_one(&mut *self.tx).await?;
            self.tx.rollback().await?;
            return Ok(current);
        }
        let next = self.lock().await?;
        let rebuilt = self.policy && policy::rebuild(&mut self.tx, next).await?;
        let policy = rebuilt || !self.scopes.is_empty();
        if self.blocks {
            let blocking = self.audit.iter().any(|(action, ..)| *action == Action::Block);
            block::fit(&mut self.tx, blocking).await?;
        }
        self.write_key_changes(next).await?;
        self.write_credentials(next).await?;
        self.write_scopes(next).await?;
        self.write_audit(next).await?;
        let keys = !self.prefixes.is_empty();
        let credentials = self.credentials_gone || !self.credentials.is_empty();
        // Last: the counter, and the word to everyone that is sent at commit.
        sqlx::query(
            "with bumped as (
                 update revision set revision = $1,
                     policy      = case when $2 then $1 else policy end,
                     keys        = case when $3 then $1 else keys end,
                     blocks      = case when $4 then $1 else blocks end,
                     credentials = case when $5 then $1 else credentials end
                 where one returning revision)
             select pg_notify('sluicegate', revision::text) from bumped",
        )
        .bind(next)
        .bind(policy)
        .bind(keys)
        .bind(self.blocks)
        .bind(credentials)
        .execute(&mut *self.tx)
        .await?;
        self.tx.commit().await?;
        Ok(next)
    }

    /// Takes the counter until the end of the transaction; what is read from here on is what the last commit left.
    async fn lock(&mut self) -> Result<i64, WriteError> {
        let current: i64 =
            sqlx::query_scalar("select revision from revision where one for update").fetch_one(&mut *self.tx).await?;
        Ok(current + 1)
    }

    async fn write_key_changes(&mut self, revision: i64) -> Result<(), sqlx::Error> {
        if !self.prefixes.is_empty() {
            sqlx::query("insert into key_change (revision, prefix) select distinct $1::bigint, unnest($2::int[])")
                .bind(revision)
                .bind(&self.prefixes)
                .execute(&mut *self.tx)
                .await?;
        }
        Ok(())
    }

    async fn write_credentials(&mut self, revision: i64) -> Result<(), sqlx::Error> {
        if !self.credentials.is_empty() {
            sqlx::query("update credential set revision = $1 where id = any($2)")
                .bind(revision)
                .bind(&self.credentials)
                .execute(&mut *self.tx)
                .await?;
        }
        Ok(())
    }

    async fn write_scopes(&mut self, revision: i64) -> Result<(), sqlx::Error> {
        if !self.scopes.is_empty() {
            sqlx::query("update envoy_group set scoped_at = $1 where id = any($2)")
                .bind(revision)
                .bind(&self.scopes)
                .execute(&mut *self.tx)
                .await?;
        }
        Ok(())
    }

    async fn write_audit(&mut self, revision: i64) -> Result<(), sqlx::Error> {
        let actions: Vec<&str> = self.audit.iter().map(|(action, ..)| action.name()).collect();
        let kinds: Vec<&str> = self.audit.iter().map(|(_, kind, ..)| *kind).collect();
        let objects: Vec<&str> = self.audit.iter().map(|(_, _, object, _)| object.as_str()).collect();
        let details: Vec<&Value> = self.audit.iter().map(|(.., detail)| detail).collect();
        sqlx::query(
            "insert into audit (actor, action, kind, object, revision, detail)
             select $1, a.action, a.kind, a.object, $2, a.detail
             from unnest($3::text[], $4::text[], $5::text[], $6::jsonb[]) as a (action, kind, object, detail)",
        )
        .bind(&self.actor)
        .bind(revision)
        .bind(actions)
        .bind(kinds)
        .bind(objects)
        .bind(details)
        .execute(&mut *self.tx)
        .await?;
        Ok(())
    }
}
