//! The declarative file compared with the store and made so in one write; and the store as such a file.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::document::{Document, Version, sections};
use super::noun::{
    self, Credential, DEFAULT_GROUP, Group, Issuer, Key, Model, Noun, Org, Price, Provider, Stored, Team, User, Which,
};
use super::{Store, Write, WriteError};

/// One difference between a file and the store.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Change {
    pub action: ChangeKind,
    pub kind: String,
    pub name: String,
    /// Of an update: what each field was and is, or `replaced` for a secret.
    #[serde(skip_serializing_if = "Map::is_empty")]
    #[schema(value_type = Object)]
    pub fields: Map<String, Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    Create,
    Update,
    Delete,
}

impl Write {
    /// Makes the store as `document` says and returns the differences there were. With `prune`, what a section does not
    /// name is deleted; without, it stays.
    ///
    /// # Errors
    /// The first fault, with its path into the document.
    pub async fn apply(&mut self, document: &Document, prune: bool) -> Result<Vec<Change>, WriteError> {
        document.check()?;
        // Two of them at once would meet in the middle.
        sqlx::query("select pg_advisory_xact_lock(x'6170706c79'::bigint)").execute(self.conn()).await?;
        let mut changes = Vec::new();
        macro_rules! merge {
            ($($section:ident),*) => {
                Rest { $( $section: self.merge(stringify!($section), &document.$section, &mut changes).await? ),* }
            };
        }
        let mut rest = sections!(merge);
        if prune {
            rest.groups.retain(|group| group.noun.name != DEFAULT_GROUP);
            // Backwards, so that nothing goes before what refers to it.
            self.prune(rest.groups, &mut changes).await?;
            self.prune(rest.keys, &mut changes).await?;
            self.prune(rest.issuers, &mut changes).await?;
            self.prune(rest.users, &mut changes).await?;
            self.prune(rest.teams, &mut changes).await?;
            self.prune(rest.orgs, &mut changes).await?;
            self.prune(rest.prices, &mut changes).await?;
            self.prune(rest.models, &mut changes).await?;
            self.prune(rest.credentials, &mut changes).await?;
            self.prune(rest.providers, &mut changes).await?;
        }
        Ok(changes)
    }

    /// Creates and updates what a section names; returns what the store has besides.
    async fn merge<T: Noun>(
        &mut self,
        section: &str,
        nouns: &Option<Vec<T>>,
        changes: &mut Vec<Change>,
    ) -> Result<Vec<Stored<T>>, WriteError> {
        let Some(nouns) = nouns else { return Ok(Vec::new()) };
        let stored = T::load(self.conn(), Which::ALL).await?;
        let mut stored: BTreeMap<String, Stored<T>> = stored.into_iter().map(|s| (s.noun.handle(), s)).collect();
        for (i, noun) in nouns.iter().enumerate() {
            let done = match stored.remove(&noun.handle()) {
                None => noun::create(self, noun).await.map(|_| Some((ChangeKind::Create, Map::new()))),
                Some(old) => self.make_so(&old, noun).await.map(|fields| fields.map(|f| (ChangeKind::Update, f))),
            };
            let done = done.map_err(|e| e.under(&format!("{section}[{i}]")))?;
            changes.extend(done.map(|(action, fields)| Change {
                action,
                kind: T::KIND.to_owned(),
                name: noun.handle(),
                fields,
            }));
        }
        Ok(stored.into_values().collect())
    }

    /// What is right already is not even held: most of a file usually is.
    async fn make_so<T: Noun>(&mut self, old: &Stored<T>, new: &T) -> Result<Option<Map<String, Value>>, WriteError> {
        if !noun::differs(self, old, new).await? {
            return Ok(None);
        }
        let old = noun::hold::<T>(self, old.id).await?;
        noun::change(self, &old, new).await
    }

    async fn prune<T: Noun>(&mut self, rest: Vec<Stored<T>>, changes: &mut Vec<Change>) -> Result<(), WriteError> {
        for stored in rest {
            noun::delete(self, &stored)
                .await
                .map_err(|e| e.under(&format!("{} {:?}", T::KIND, stored.noun.handle())))?;
            let (kind, name) = (T::KIND.to_owned(), stored.noun.handle());
            changes.push(Change { action: ChangeKind::Delete, kind, name, fields: Map::new() });
        }
        Ok(())
    }
}

/// What the store has that the document does not name, of the sections that it has.
struct Rest {
    groups: Vec<Stored<Group>>,
    providers: Vec<Stored<Provider>>,
    credentials: Vec<Stored<Credential>>,
    models: Vec<Stored<Model>>,
    prices: Vec<Stored<Price>>,
    orgs: Vec<Stored<Org>>,
    teams: Vec<Stored<Team>>,
    users: Vec<Stored<User>>,
    issuers: Vec<Stored<Issuer>>,
    keys: Vec<Stored<Key>>,
}

impl Store {
    /// Everything as a file, without secrets: applied to this store it changes nothing.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn export(&self) -> Result<Document, WriteError> {
        let mut tx = self.pool.begin_with("begin isolation level repeatable read read only").await?;
        Ok(Document {
            version: Version::V1,
            groups: all(&mut tx).await?,
            providers: all(&mut tx).await?,
            credentials: all(&mut tx).await?,
            models: all(&mut tx).await?,
            prices: all(&mut tx).await?,
            orgs: all(&mut tx).await?,
            teams: all(&mut tx).await?,
            users: all(&mut tx).await?,
            issuers: all(&mut tx).await?,
            keys: all(&mut tx).await?,
        })
    }
}

async fn all<T: Noun>(conn: &mut PgConnection) -> Result<Option<Vec<T>>, WriteError> {
    Ok(Some(T::load(conn, Which::ALL).await?.into_iter().map(|stored| stored.noun).collect()))
}
