//! The nouns: one file each, with what it looks like in requests and files, what is checked, and how it is stored.
//!
//! A noun is declared in one form everywhere: the body of a `POST`, what a `PATCH` is merged into, an entry of a file.

mod credential;
mod group;
mod issuer;
mod key;
mod model;
mod owner;
mod price;
mod provider;

use std::future::Future;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::{Action, Fault, Store, Write, WriteError, number};

pub(crate) use credential::context as credential_context;
pub use credential::{CREDENTIAL_SLOTS, Credential, CredentialFacts};
pub(super) use group::DEFAULT as DEFAULT_GROUP;
pub use group::Group;
pub use issuer::{ClaimPath, Grant, Issuer, OrgBy, Required, Roles};
pub(super) use key::prefix;
pub use key::{Key, KeyFacts};
pub use model::{Model, Target};
pub(super) use owner::org_of;
pub use owner::{BlockFacts, Org, Team, User};
pub use price::{Dollars, Price, Tier};
pub use provider::{Dialect, Provider};

/// A noun as it is stored.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Stored<T: Noun> {
    /// Stable, never reused.
    pub id: i32,
    #[serde(flatten)]
    pub noun: T,
    #[serde(flatten)]
    pub facts: T::Facts,
    pub created_at: DateTime<Utc>,
}

/// Nothing besides what was declared.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct NoFacts {}

/// Which of a kind: all of them in the order of their ids, a page at a time, or one.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    pub id: Option<i32>,
    pub after: i32,
    pub limit: i64,
}

impl Which {
    pub const ALL: Self = Self { id: None, after: 0, limit: i64::MAX };

    pub fn one(id: i32) -> Self {
        Self { id: Some(id), after: 0, limit: 1 }
    }

    pub fn page(after: i32, limit: u32) -> Self {
        Self { id: None, after, limit: i64::from(limit) }
    }
}

/// What all nouns can do.
pub trait Noun: Serialize + DeserializeOwned + ToSchema + Clone + Send + Sync + 'static {
    const KIND: &'static str;
    /// Takes the row with an id until the end of the write, so that two changes of one noun follow each other.
    const HOLD: &'static str;
    /// What the store knows of it besides what was declared.
    type Facts: Serialize + ToSchema + Clone + Send + Sync + 'static;

    /// How a person names it: `openai`; with its org or provider where the name alone is not unique, `acme/ci`.
    fn handle(&self) -> String;

    /// Every check that needs no store.
    ///
    /// # Errors
    /// The first fault, its field relative to this noun.
    fn check(&self) -> Result<(), Fault>;

    /// Whether `new` changes something that a declaration does not show, such as a secret.
    fn hidden_change(
        _conn: &mut PgConnection,
        _id: i32,
        _new: &Self,
    ) -> impl Future<Output = sqlx::Result<bool>> + Send {
        async { Ok(false) }
    }

    /// The id of what `handle` names; only used where it is not an id itself.
    fn find(conn: &mut PgConnection, handle: &str) -> impl Future<Output = Result<Option<i32>, WriteError>> + Send;

    fn load(conn: &mut PgConnection, which: Which) -> impl Future<Output = sqlx::Result<Vec<Stored<Self>>>> + Send;

    fn insert(&self, write: &mut Write) -> impl Future<Output = Result<i32, WriteError>> + Send;

    fn update(&self, write: &mut Write, id: i32, old: &Self) -> impl Future<Output = Result<(), WriteError>> + Send;

    fn remove(&self, write: &mut Write, id: i32) -> impl Future<Output = Result<(), WriteError>> + Send;
}

/// Checks, stores and notes a new noun.
pub(super) async fn create<T: Noun>(write: &mut Write, noun: &T) -> Result<i32, WriteError> {
    noun.check()?;
    let id = noun.insert(write).await?;
    write.audit(Action::Create, T::KIND, noun.handle(), declared(noun));
    Ok(id)
}

/// Takes a noun for the rest of the write and reads it as it is now.
pub(super) async fn hold<T: Noun>(write: &mut Write, id: i32) -> Result<Stored<T>, WriteError> {
    sqlx::query(T::HOLD).bind(id).execute(write.conn()).await?;
    fetch(write.conn(), &id.to_string()).await
}

/// Checks, stores and notes a changed noun; returns what changed, `None` for nothing. `old` is held.
pub(super) async fn change<T: Noun>(
    write: &mut Write,
    old: &Stored<T>,
    new: &T,
) -> Result<Option<Map<String, Value>>, WriteError> {
    new.check()?;
    let mut changes = difference(&old.noun, new);
    if T::hidden_change(write.conn(), old.id, new).await? {
        changes.insert("secret".to_owned(), json!("replaced"));
    }
    if changes.is_empty() {
        return Ok(None);
    }
    new.update(write, old.id, &old.noun).await?;
    write.audit(Action::Update, T::KIND, new.handle(), Value::Object(changes.clone()));
    Ok(Some(changes))
}

/// Whether `new` would change anything.
pub(super) async fn differs<T: Noun>(write: &mut Write, old: &Stored<T>, new: &T) -> Result<bool, WriteError> {
    Ok(!difference(&old.noun, new).is_empty() || T::hidden_change(write.conn(), old.id, new).await?)
}

pub(super) async fn delete<T: Noun>(write: &mut Write, old: &Stored<T>) -> Result<(), WriteError> {
    old.noun.remove(write, old.id).await?;
    write.audit(Action::Delete, T::KIND, old.noun.handle(), declared(&old.noun));
    Ok(())
}

/// One noun by its id or handle.
pub(super) async fn fetch<T: Noun>(conn: &mut PgConnection, reference: &str) -> Result<Stored<T>, WriteError> {
    let id = match number::id(reference) {
        Some(id) => Some(id),
        None => T::find(conn, reference).await?,
    };
    let not_found = || WriteError::NotFound { kind: T::KIND, name: reference.to_owned() };
    let found = T::load(conn, Which::one(id.ok_or_else(not_found)?)).await?;
    found.into_iter().next().ok_or_else(not_found)
}

impl Write {
    /// # Errors
    /// A fault of the noun, a name that is taken, a reference to nothing.
    pub async fn create<T: Noun>(&mut self, noun: &T) -> Result<i32, WriteError> {
        create(self, noun).await
    }

    /// Merges `patch` (RFC 7396: absent stays, null clears) into the noun; returns its id.
    ///
    /// # Errors
    /// As [`Write::create`]; an unknown field is a fault.
    pub async fn patch<T: Noun>(&mut self, reference: &str, patch: Map<String, Value>) -> Result<i32, WriteError> {
        let id = fetch::<T>(self.conn(), reference).await?.id;
        let old = hold::<T>(self, id).await?;
        let mut merged = declared(&old.noun);
        if let Value::Object(fields) = &mut merged {
            for (field, value) in patch {
                match value {
                    Value::Null => drop(fields.remove(&field)),
                    value => drop(fields.insert(field, value)),
                }
            }
        }
        let new: T = parse(merged)?;
        change(self, &old, &new).await?;
        Ok(old.id)
    }

    /// # Errors
    /// Where there is none, or something uses it.
    pub async fn delete<T: Noun>(&mut self, reference: &str) -> Result<(), WriteError> {
        let id = fetch::<T>(self.conn(), reference).await?.id;
        let old = hold::<T>(self, id).await?;
        delete(self, &old).await
    }
}

impl Store {
    /// One noun by its id or handle.
    ///
    /// # Errors
    /// Where there is none.
    pub async fn fetch<T: Noun>(&self, reference: &str) -> Result<Stored<T>, WriteError> {
        let mut conn = self.pool.acquire().await?;
        fetch(&mut conn, reference).await
    }

    /// # Errors
    /// When the database is away.
    pub async fn list<T: Noun>(&self, which: Which) -> Result<Vec<Stored<T>>, WriteError> {
        let mut conn = self.pool.acquire().await?;
        Ok(T::load(&mut conn, which).await?)
    }
}

/// Reads JSON as a noun; a fault names the field.
///
/// # Errors
/// An unknown, missing or ill-typed field.
pub fn parse<T: DeserializeOwned>(value: Value) -> Result<T, Fault> {
    serde_path_to_error::deserialize(value)
        .map_err(|e| Fault { field: path_of(e.path()), message: e.inner().to_string() })
}

/// A path as our faults write it: empty for the whole document.
pub fn path_of(path: &serde_path_to_error::Path) -> String {
    match path.to_string() {
        whole if whole == "." => String::new(),
        path => path,
    }
}

fn declared<T: Noun>(noun: &T) -> Value {
    serde_json::to_value(noun).unwrap_or_default()
}

/// The fields that differ, as `{"field": {"from": .., "to": ..}}`.
fn difference<T: Noun>(old: &T, new: &T) -> Map<String, Value> {
    let (Value::Object(old), Value::Object(new)) = (declared(old), declared(new)) else { return Map::new() };
    let fields: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let of = |map: &Map<String, Value>, field: &String| map.get(field).cloned().unwrap_or_default();
    fields
        .into_iter()
        .filter(|field| of(&old, field) != of(&new, field))
        .map(|field| (field.clone(), json!({ "from": of(&old, field), "to": of(&new, field) })))
        .collect()
}

const MAX_NAME_BYTES: usize = 128;

/// A name that people, headers, paths and logs can carry. `slash`: whether it may hold one, as model names do.
pub(super) fn check_name(field: &str, name: &str, slash: bool) -> Result<(), Fault> {
    let fault = if name.is_empty() {
        "must not be empty"
    } else if name.len() > MAX_NAME_BYTES {
        "is longer than 128 bytes"
    } else if name.chars().any(char::is_control) {
        "must not contain control characters"
    } else if name.chars().any(is_invisible) {
        "must not contain invisible characters, by which one name can look like another"
    } else if name.trim() != name {
        "must not begin or end with white space"
    } else if name.bytes().all(|b| b.is_ascii_digit()) {
        "must not be a number, which would be taken for an id"
    } else if name == "." || name == ".." {
        "must not be a dot or two, which URLs give a meaning"
    } else if name.contains('/') && !slash {
        "must not contain a slash"
    } else {
        return Ok(());
    };
    Err(Fault::new(field, fault))
}

/// Whether a character shows nothing of itself, or turns the direction of what stands beside it.
pub(crate) fn is_invisible(c: char) -> bool {
    matches!(c,
        // Soft hyphen, Arabic letter mark, Mongolian vowel separator.
        '\u{ad}' | '\u{61c}' | '\u{180e}'
        // Zero-width spaces and joiners, marks of direction; line and paragraph separators; embeddings and overrides.
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        // Word joiner, invisible operators, isolates, shapers; the byte order mark.
        | '\u{2060}'..='\u{206f}' | '\u{feff}'
        // Interlinear annotation; tags.
        | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// At most so many bytes.
fn check_length(field: &str, text: &str, most: usize) -> Result<(), Fault> {
    if text.len() <= most { Ok(()) } else { Err(Fault::new(field, format!("is longer than {most} bytes"))) }
}

/// A name that goes into headers as it is.
fn check_token(field: &str, name: &str, slash: bool) -> Result<(), Fault> {
    check_name(field, name, slash)?;
    if name.bytes().all(|b| b.is_ascii_graphic()) {
        Ok(())
    } else {
        Err(Fault::new(field, "must be visible ASCII without spaces"))
    }
}

/// The id of what a field names.
async fn refer(
    conn: &mut PgConnection,
    sql: &'static str,
    field: &str,
    kind: &str,
    name: &str,
) -> Result<i32, WriteError> {
    let id: Option<i32> = sqlx::query_scalar(sql).bind(name).fetch_optional(conn).await?;
    id.ok_or_else(|| Fault::new(field, format!("no {kind} is named {name:?}")).into())
}

/// The ids of what a list names; `None` stays `None`. `sql` takes the names and returns an id or null for each, in order.
async fn refer_all(
    conn: &mut PgConnection,
    sql: &'static str,
    field: &str,
    kind: &str,
    names: Option<&[String]>,
) -> Result<Option<Vec<i32>>, WriteError> {
    let Some(names) = names else { return Ok(None) };
    let ids: Vec<Option<i32>> = sqlx::query_scalar(sql).bind(names).fetch_all(conn).await?;
    let known = |(i, (id, name)): (usize, (Option<i32>, &String))| {
        id.ok_or_else(|| Fault::new(format!("{field}[{i}]"), format!("no {kind} is named {name:?}")))
    };
    Ok(Some(ids.into_iter().zip(names).enumerate().map(known).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_shows_all_that_it_is() {
        for good in ["acme", "+19", "-1", "a b", "Zürich", "東京", "עברית", "1a"] {
            assert!(check_name("name", good, false).is_ok(), "{good:?}");
        }
        for invisible in [
            "\u{202a}", "\u{202e}", "\u{2066}", "\u{2069}", "\u{200b}", "\u{200f}", "\u{2060}", "\u{feff}", "\u{ad}",
            "\u{2028}",
        ] {
            for name in [format!("{invisible}acme"), format!("ac{invisible}me"), format!("acme{invisible}")] {
                assert!(check_name("name", &name, false).is_err(), "{name:?}");
            }
        }
        for bad in ["", "19", "0", " a", "a/b", "."] {
            assert!(check_name("name", bad, false).is_err(), "{bad:?}");
        }
    }
}
