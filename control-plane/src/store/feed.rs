//! What the publisher reads: counters with the clock, and what changed since a revision.
//!
//! Everything of one [`Reading`] comes from one snapshot of the database, so content and revision belong together.

use futures::TryStreamExt as _;
use sluicegate_core::noun::{Owner, OwnerKind};
use sluicegate_core::state::blocked::MAX_BLOCKED;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgListener, PgRow};
use sqlx::{Connection as _, FromRow, PgConnection, Postgres, Row as _};
use tokio::time::Instant;

use super::{Scope, Store, StoreError, scope};

/// The channel that every commit notifies.
pub const CHANNEL: &str = "sluicegate";

/// The counters and the database's time, read in one statement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromRow)]
pub struct Clock {
    #[sqlx(try_from = "i64")]
    pub era: u64,
    /// Of the last commit.
    #[sqlx(try_from = "i64")]
    pub revision: u64,
    /// Revisions of the last commit that changed each part.
    #[sqlx(flatten)]
    pub parts: Parts,
    pub now_unix_ns: i64,
}

/// The revision of the last commit that changed each part of the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromRow)]
pub struct Parts {
    #[sqlx(try_from = "i64")]
    pub policy: u64,
    #[sqlx(try_from = "i64")]
    pub keys: u64,
    #[sqlx(try_from = "i64")]
    pub blocks: u64,
    #[sqlx(try_from = "i64")]
    pub credentials: u64,
}

/// Where the change log begins is read with the clock, to save a round trip on the way of every commit.
const CLOCK_AND_LOG: &str = "select era, revision, policy, keys, blocks, credentials,
    (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000 as now_unix_ns,
    coalesce((select min(revision) - 1 from key_change), keys) as log_start from revision where one";

const CLOCK: &str = "select era, revision, policy, keys, blocks, credentials,
    (extract(epoch from clock_timestamp()) * 1000000)::bigint * 1000 as now_unix_ns from revision where one";

/// One living key, or identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// SHA-256 of the whole key, or of what makes an identity.
    pub hash: [u8; 32],
    /// 0 of an identity.
    pub id: u32,
    pub org: u32,
    /// 0 for none, as `user`.
    pub team: u32,
    pub user: u32,
    pub profile: u32,
    pub disabled: bool,
    /// Unix seconds.
    pub expires_at: Option<i64>,
}

/// All living keys whose hash starts with `prefix`, as of the reading. `revision` is that of the last change among them.
#[derive(Clone, Debug)]
pub struct KeyChange {
    pub prefix: u32,
    pub revision: u64,
    pub keys: Vec<KeyRow>,
}

/// A profile as stored: an encoded `ProfileBody`.
pub type ProfileRow = (u32, Vec<u8>);

/// The key index as far as the reader does not have it.
#[derive(Debug)]
pub enum KeyReading {
    /// What changed, with every profile that it names.
    Changed { changes: Vec<KeyChange>, profiles: Vec<ProfileRow> },
    /// Everything. The keys themselves went to the reader's callback, in order of their hashes.
    Whole {
        profiles: Vec<ProfileRow>,
        /// Changes after this revision are all in `changed`.
        log_start: u64,
        /// The first two bytes of a hash, and the last revision at which a key that starts with them changed.
        changed: Vec<(u16, u64)>,
    },
}

/// The rules, encoded, as of `revision`.
#[derive(Clone, Debug)]
pub struct PolicyRow {
    pub revision: u64,
    pub snapshot: Vec<u8>,
}

/// A provider credential and where its secret comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialRow {
    pub id: u32,
    pub name: String,
    pub revision: u64,
    /// `stored`, `env:<NAME>` or `file:<path>`.
    pub source: String,
    /// Under the keyring, where stored.
    pub sealed: Option<Vec<u8>>,
}

/// What a reader did not have yet; `None` where nothing changed.
#[derive(Debug)]
pub struct Reading {
    pub clock: Clock,
    /// When the clock was read, on this machine's own clock.
    pub read_at: Instant,
    pub keys: Option<KeyReading>,
    pub blocked: Option<Vec<Owner>>,
    /// Inner `None`: there is no policy yet.
    pub policy: Option<Option<PolicyRow>>,
    pub credentials: Option<Vec<CredentialRow>>,
    /// Of every group; read with the policy.
    pub scopes: Option<Vec<Scope>>,
}

/// A connection that only reads what Envoys need.
#[derive(Debug)]
pub struct FeedReader {
    connection: PoolConnection<Postgres>,
}

impl Store {
    /// The counters and the time of the database.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn clock(&self) -> Result<Clock, StoreError> {
        Ok(sqlx::query_as(CLOCK).fetch_one(&self.pool).await?)
    }

    /// # Errors
    /// When the database does not answer.
    pub async fn feed_reader(&self) -> Result<FeedReader, StoreError> {
        Ok(FeedReader { connection: self.pool.acquire().await? })
    }

    /// Hears every commit from now on.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn listen(&self) -> Result<Commits, StoreError> {
        let mut listener = PgListener::connect_with(&self.pool).await?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        Ok(Commits { listener })
    }
}

/// Wakes its reader after each commit. Wakes may be merged or superfluous.
#[derive(Debug)]
pub struct Commits {
    listener: PgListener,
}

impl Commits {
    /// Returns after at least one commit.
    ///
    /// # Errors
    /// When the connection is gone: commits since may have been missed.
    pub async fn next(&mut self) -> Result<(), StoreError> {
        match self.listener.try_recv().await? {
            Some(_) => {
                // A burst of commits is one reading.
                while self.listener.next_buffered().is_some() {}
                Ok(())
            }
            None => Err(StoreError::Database(sqlx::Error::PoolClosed)),
        }
    }
}

impl FeedReader {
    /// Reads what changed since `known`, the clock of the reader's last [`Reading`] (`None`: everything). Where the change log
    /// does not reach back to it, or the era is another, the whole key index is read: `on_key` gets each key.
    ///
    /// # Errors
    /// When the database does not answer or a row makes no sense.
    pub async fn read(
        &mut self,
        known: Option<Clock>,
        on_key: &mut (dyn FnMut(KeyRow) + Send),
    ) -> Result<Reading, StoreError> {
        let mut tx = self.connection.begin_with("begin isolation level repeatable read read only").await?;
        let row = sqlx::query(CLOCK_AND_LOG).fetch_one(&mut *tx).await?;
        let (clock, log_start) = (Clock::from_row(&row)?, row.try_get::<i64, _>("log_start")?.cast_unsigned());
        let read_at = Instant::now();
        // Within an era a part that did not move is the one that is known.
        let known = known.filter(|k| k.era == clock.era && k.revision <= clock.revision);
        let stale = |part: fn(&Parts) -> u64| known.is_none_or(|k| part(&k.parts) != part(&clock.parts));
        let mut reading =
            Reading { clock, read_at, keys: None, blocked: None, policy: None, credentials: None, scopes: None };
        if stale(|p| p.keys) {
            reading.keys = Some(read_keys(&mut tx, known.map(|k| k.parts.keys), log_start, on_key).await?);
        }
        if stale(|p| p.blocks) {
            reading.blocked = Some(read_blocked(&mut tx).await?);
        }
        if stale(|p| p.policy) {
            reading.policy = Some(read_policy(&mut tx).await?);
            reading.scopes = Some(scope::read(&mut tx).await?);
        }
        if stale(|p| p.credentials) {
            reading.credentials = Some(read_credentials(&mut tx).await?);
        }
        // Dropped rather than ended here: the rollback goes out with the next reading, and this one is not kept waiting for it.
        drop(tx);
        Ok(reading)
    }
}

async fn read_keys(
    connection: &mut PgConnection,
    known: Option<u64>,
    log_start: u64,
    on_key: &mut (dyn FnMut(KeyRow) + Send),
) -> Result<KeyReading, StoreError> {
    match known {
        Some(known) if known >= log_start => changed_keys(connection, known).await,
        _ => whole_keys(connection, log_start, on_key).await,
    }
}

/// As [`key_row`] reads them, first in every select: by place, for there may be millions of rows.
const KEY_COLUMNS: &str = "k.hash, k.id, k.org_id, k.team_id, k.user_id, k.profile_id, k.disabled,
    extract(epoch from k.expires_at)::bigint as expires_at";

async fn whole_keys(
    connection: &mut PgConnection,
    log_start: u64,
    on_key: &mut (dyn FnMut(KeyRow) + Send),
) -> Result<KeyReading, StoreError> {
    let profiles: Vec<(i32, Vec<u8>)> =
        sqlx::query_as("select id, body from profile").fetch_all(&mut *connection).await?;
    let changed: Vec<(i32, i64)> =
        sqlx::query_as("select (prefix >> 16) & 65535, max(revision) from key_change group by 1")
            .fetch_all(&mut *connection)
            .await?;
    let select = sqlx::AssertSqlSafe(format!("select {KEY_COLUMNS} from key_record k order by k.hash"));
    let mut rows = sqlx::query(select).fetch(&mut *connection);
    while let Some(row) = rows.try_next().await? {
        on_key(key_row(&row)?);
    }
    Ok(KeyReading::Whole {
        profiles: profiles.into_iter().map(|(id, body)| (id.cast_unsigned(), body)).collect(),
        log_start,
        changed: changed
            .into_iter()
            .map(|(cell, revision)| (u16::try_from(cell).unwrap_or_default(), revision.cast_unsigned()))
            .collect(),
    })
}

async fn changed_keys(connection: &mut PgConnection, known: u64) -> Result<KeyReading, StoreError> {
    // A hash starts with `prefix` exactly when it lies between it and it followed by 28 bytes of ff.
    let select = sqlx::AssertSqlSafe(format!(
        "select {KEY_COLUMNS}, c.prefix, c.revision, p.body
         from (select prefix, max(revision) as revision from key_change where revision > $1 group by prefix) c
         left join lateral (
           select * from key_record where hash between int4send(c.prefix) and int4send(c.prefix) || $2
         ) k on true
         left join profile p on p.id = k.profile_id
         order by c.prefix, k.hash"
    ));
    let mut rows = sqlx::query(select).bind(known.cast_signed()).bind([0xff_u8; 28].as_slice()).fetch(connection);
    let mut changes: Vec<KeyChange> = Vec::new();
    let mut profiles = Vec::new();
    while let Some(row) = rows.try_next().await? {
        let prefix = row.try_get::<i32, _>("prefix")?.cast_unsigned();
        if changes.last().is_none_or(|last| last.prefix != prefix) {
            let revision = row.try_get::<i64, _>("revision")?.cast_unsigned();
            changes.push(KeyChange { prefix, revision, keys: Vec::new() });
        }
        if row.try_get::<Option<&[u8]>, _>("hash")?.is_some()
            && let Some(change) = changes.last_mut()
        {
            let key = key_row(&row)?;
            profiles.push((key.profile, row.try_get("body")?));
            change.keys.push(key);
        }
    }
    profiles.sort_unstable_by_key(|(id, _)| *id);
    profiles.dedup_by_key(|(id, _)| *id);
    Ok(KeyReading::Changed { changes, profiles })
}

fn key_row(row: &PgRow) -> Result<KeyRow, StoreError> {
    let id = |column: usize| Ok::<_, sqlx::Error>(row.try_get::<Option<i32>, _>(column)?.map_or(0, i32::cast_unsigned));
    Ok(KeyRow {
        hash: row
            .try_get::<&[u8], _>(0)?
            .try_into()
            .map_err(|_| StoreError::Damaged("the hash of a key is not 32 bytes"))?,
        id: id(1)?,
        org: id(2)?,
        team: id(3)?,
        user: id(4)?,
        profile: id(5)?,
        disabled: row.try_get(6)?,
        expires_at: row.try_get(7)?,
    })
}

/// No more than Envoys take: of a longer list they would take nothing. Those that are not deleted come first.
async fn read_blocked(connection: &mut PgConnection) -> Result<Vec<Owner>, StoreError> {
    let mut rows: Vec<(i16, i32)> =
        sqlx::query_as("select kind, id from blocked_owner order by gone_at desc nulls first, kind, id limit $1")
            .bind(i64::try_from(MAX_BLOCKED + 1).unwrap_or(i64::MAX))
            .fetch_all(connection)
            .await?;
    if rows.len() > MAX_BLOCKED {
        tracing::error!(most = MAX_BLOCKED, "more owners are blocked than Envoys hold: the last ones are not");
        rows.truncate(MAX_BLOCKED);
    }
    rows.into_iter()
        .map(|(kind, id)| {
            let kind = u8::try_from(kind).ok().and_then(OwnerKind::from_u8);
            let kind = kind.ok_or(StoreError::Damaged("a blocked owner is of no known kind"))?;
            Ok(Owner { kind, id: id.cast_unsigned() })
        })
        .collect()
}

async fn read_policy(connection: &mut PgConnection) -> Result<Option<PolicyRow>, StoreError> {
    let row: Option<(i64, Vec<u8>)> =
        sqlx::query_as("select revision, snapshot from policy order by revision desc limit 1")
            .fetch_optional(connection)
            .await?;
    Ok(row.map(|(revision, snapshot)| PolicyRow { revision: revision.cast_unsigned(), snapshot }))
}

pub(super) async fn read_credentials(connection: &mut PgConnection) -> Result<Vec<CredentialRow>, StoreError> {
    type Row = (i32, String, i64, String, Option<Vec<u8>>);
    let rows: Vec<Row> = sqlx::query_as("select id, name, revision, source, sealed from credential order by id")
        .fetch_all(connection)
        .await?;
    Ok(rows
        .into_iter()
        .map(|(id, name, revision, source, sealed)| CredentialRow {
            id: id.cast_unsigned(),
            name,
            revision: revision.cast_unsigned(),
            source,
            sealed,
        })
        .collect())
}
