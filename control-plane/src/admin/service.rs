//! What the Admin API does, whatever carries it.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::Error;
use super::reconcile::{self, Difference};
use crate::credentials::Keyring;
use crate::store::noun::{Key, Noun, Stored, Which};
use crate::store::{
    AdminToken, AuditEntry, Blockable, Change, Document, EnvoyRow, Fault, NewAdminToken, NewNodeToken, NodeToken,
    Store, SummaryRow, UsageFilter, UsageRow,
};

/// The one way to change what the store holds.
#[derive(Debug)]
pub struct Service {
    store: Store,
    keyring: Arc<Keyring>,
}

/// Part of a list.
#[derive(Debug, Serialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// What to send as `after` for the next part; null: this was the last.
    pub next: Option<String>,
}

/// A key with its secret, which is never shown again.
#[derive(Debug, Serialize, ToSchema)]
pub struct IssuedKey {
    #[serde(flatten)]
    pub key: Stored<Key>,
    /// `sk-sg-...`; null where the key was made elsewhere and given by its hash.
    pub secret: Option<String>,
}

/// A node token with its secrets, which are never shown again.
#[derive(Debug, Serialize, ToSchema)]
pub struct IssuedNodeToken {
    #[serde(flatten)]
    pub node_token: NodeToken,
    /// For the Envoy's `SLUICEGATE_NODE_TOKEN`.
    pub token: String,
    /// For the Envoy's `SLUICEGATE_SEAL_KEY`.
    pub seal_key: String,
}

/// An admin token with itself, which is never shown again.
#[derive(Debug, Serialize, ToSchema)]
pub struct IssuedAdminToken {
    #[serde(flatten)]
    pub admin_token: AdminToken,
    /// `sga-...`
    pub token: String,
}

/// What an apply did, or would do.
#[derive(Debug, Serialize, ToSchema)]
pub struct ApplyOutcome {
    pub dry_run: bool,
    /// The revision of the commit; the current one where nothing changed; null in a dry run.
    pub revision: Option<i64>,
    pub changes: Vec<Change>,
    /// Keys that were made, with their secrets, which are never shown again.
    pub keys: Vec<AppliedKey>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct AppliedKey {
    /// `<org>/<name>`
    pub key: String,
    pub secret: String,
}

type Result<T> = std::result::Result<T, Error>;

const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;

fn bounded(limit: Option<u32>) -> Result<u32> {
    match limit.unwrap_or(DEFAULT_LIMIT) {
        limit @ 1..=MAX_LIMIT => Ok(limit),
        _ => Err(Fault::new("limit", format!("must be from 1 to {MAX_LIMIT}")).into()),
    }
}

fn page<T>(items: Vec<T>, limit: u32, position: impl Fn(&T) -> String) -> Page<T> {
    let full = usize::try_from(limit).is_ok_and(|limit| items.len() >= limit);
    let next = items.last().filter(|_| full).map(position);
    Page { items, next }
}

impl Service {
    pub fn new(store: Store, keyring: Arc<Keyring>) -> Self {
        Self { store, keyring }
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    pub(super) fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Invalid`] where `limit` is not from 1 to 1000, here as in every list.
    pub async fn list<T: Noun>(&self, after: Option<i32>, limit: Option<u32>) -> Result<Page<Stored<T>>> {
        let limit = bounded(limit)?;
        let items = self.store.list::<T>(Which::page(after.unwrap_or(0), limit)).await?;
        Ok(page(items, limit, |stored| stored.id.to_string()))
    }

    /// # Errors
    /// [`Error::NotFound`].
    pub async fn get<T: Noun>(&self, reference: &str) -> Result<Stored<T>> {
        Ok(self.store.fetch(reference).await?)
    }

    /// # Errors
    /// [`Error::Invalid`], [`Error::Conflict`].
    pub async fn create<T: Noun>(&self, actor: &str, noun: &T) -> Result<Stored<T>> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        let id = write.create(noun).await?;
        write.commit().await?;
        self.get(&id.to_string()).await
    }

    /// # Errors
    /// [`Error::NotFound`], [`Error::Invalid`], [`Error::Conflict`].
    pub async fn update<T: Noun>(&self, actor: &str, reference: &str, patch: Map<String, Value>) -> Result<Stored<T>> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        let id = write.patch::<T>(reference, patch).await?;
        write.commit().await?;
        self.get(&id.to_string()).await
    }

    /// # Errors
    /// [`Error::NotFound`], [`Error::Conflict`] where something uses it.
    pub async fn delete<T: Noun>(&self, actor: &str, reference: &str) -> Result<()> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        write.delete::<T>(reference).await?;
        write.commit().await?;
        Ok(())
    }

    /// # Errors
    /// [`Error::NotFound`].
    pub async fn set_blocked<T: Blockable>(&self, actor: &str, reference: &str, blocked: bool) -> Result<Stored<T>> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        let id = write.set_blocked::<T>(reference, blocked).await?;
        write.commit().await?;
        self.get(&id.to_string()).await
    }

    /// # Errors
    /// [`Error::Invalid`], [`Error::Conflict`].
    pub async fn create_key(&self, actor: &str, key: &Key) -> Result<IssuedKey> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        let id = write.create(key).await?;
        self.issue(write, id).await
    }

    /// Gives a key a new secret; the old one is refused at once.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub async fn rotate_key(&self, actor: &str, reference: &str) -> Result<IssuedKey> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        let id = write.rotate_key(reference).await?;
        self.issue(write, id).await
    }

    async fn issue(&self, mut write: crate::store::Write, id: i32) -> Result<IssuedKey> {
        let secret = write.take_issued().pop().map(|issued| issued.secret.expose().to_owned());
        write.commit().await?;
        Ok(IssuedKey { key: self.get(&id.to_string()).await?, secret })
    }

    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn node_tokens(&self, after: Option<i32>, limit: Option<u32>) -> Result<Page<NodeToken>> {
        let limit = bounded(limit)?;
        let items = self.store.node_tokens(after.unwrap_or(0), limit).await?;
        Ok(page(items, limit, |token| token.id.to_string()))
    }

    /// # Errors
    /// [`Error::Invalid`], [`Error::Conflict`].
    pub async fn create_node_token(&self, actor: &str, new: &NewNodeToken) -> Result<IssuedNodeToken> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        let issued = write.create_node_token(new).await?;
        write.commit().await?;
        Ok(IssuedNodeToken {
            node_token: self.store.node_token(issued.id).await?,
            token: issued.token.expose().to_owned(),
            seal_key: issued.seal_key.expose().to_owned(),
        })
    }

    /// # Errors
    /// [`Error::NotFound`].
    pub async fn revoke_node_token(&self, actor: &str, reference: &str) -> Result<()> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        write.revoke_node_token(reference).await?;
        write.commit().await?;
        Ok(())
    }

    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn admin_tokens(&self, after: Option<i32>, limit: Option<u32>) -> Result<Page<AdminToken>> {
        let limit = bounded(limit)?;
        let items = self.store.admin_tokens(after.unwrap_or(0), limit).await?;
        Ok(page(items, limit, |token| token.id.to_string()))
    }

    /// # Errors
    /// [`Error::Invalid`], [`Error::Conflict`].
    pub async fn create_admin_token(&self, actor: &str, new: &NewAdminToken) -> Result<IssuedAdminToken> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        let (id, token) = write.create_admin_token(new).await?;
        write.commit().await?;
        Ok(IssuedAdminToken { admin_token: self.store.admin_token(id).await?, token: token.expose().to_owned() })
    }

    /// # Errors
    /// [`Error::NotFound`], [`Error::Conflict`] where it is the last one.
    pub async fn revoke_admin_token(&self, actor: &str, reference: &str) -> Result<()> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        write.revoke_admin_token(reference).await?;
        write.commit().await?;
        Ok(())
    }

    /// Makes the store as `document` says, in one commit, or only says what that would be.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the path into the document; nothing of it is in force then.
    pub async fn apply(&self, actor: &str, document: &Document, prune: bool, dry_run: bool) -> Result<ApplyOutcome> {
        let mut write = self.store.begin(actor, &self.keyring).await?;
        let changes = write.apply(document, prune).await?;
        if dry_run {
            write.dry_run().await?;
            return Ok(ApplyOutcome { dry_run, revision: None, changes, keys: Vec::new() });
        }
        let issued = write.take_issued();
        let revision = Some(write.commit().await?);
        let applied =
            |issued: crate::store::Issued| AppliedKey { key: issued.key, secret: issued.secret.expose().to_owned() };
        Ok(ApplyOutcome { dry_run, revision, changes, keys: issued.into_iter().map(applied).collect() })
    }

    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn export(&self) -> Result<Document> {
        Ok(self.store.export().await?)
    }

    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn usage(&self, filter: &UsageFilter) -> Result<Vec<UsageRow>> {
        Ok(self.store.usage(filter, bounded(filter.limit)?).await?)
    }

    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn usage_summary(&self, filter: &UsageFilter) -> Result<Vec<SummaryRow>> {
        Ok(self.store.usage_summary(filter, bounded(filter.limit)?).await?)
    }

    /// All attempts of one request.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub async fn explain(&self, operation: Uuid) -> Result<Vec<UsageRow>> {
        let rows = self.store.operation(operation).await?;
        if rows.is_empty() {
            let hint = "records arrive within seconds of a request's end";
            return Err(Error::NotFound(format!("no request {operation} is in the ledger; {hint}")));
        }
        Ok(rows)
    }

    /// Adds to the ledger what only the access log saw. Doing it again adds nothing.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn reconcile(&self, log: &str) -> Result<Difference> {
        let mut read = reconcile::read(log);
        reconcile::price(&self.store, &mut read.records).await?;
        let reconciled = self.store.reconcile_records(std::mem::take(&mut read.records)).await?;
        Ok(read.difference(reconciled))
    }

    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn envoys(&self, limit: Option<u32>) -> Result<Vec<EnvoyRow>> {
        Ok(self.store.envoys(bounded(limit)?).await?)
    }

    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn audit(&self, before: Option<i64>, limit: Option<u32>) -> Result<Page<AuditEntry>> {
        let limit = bounded(limit)?;
        let items = self.store.audit(before, limit).await?;
        Ok(page(items, limit, |entry| entry.id.to_string()))
    }
}
