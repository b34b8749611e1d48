//! The era: which database the revisions are counted in.
//!
//! A restored backup, a promoted standby or a restarted server may have lost commits that Envoys already know, and counts
//! on from an older revision. So every stamp that leaves the control plane is (era, revision), and the era rises whenever
//! the database is not provably the one it was. Envoys never compare revisions of two eras.

use sqlx::{Connection as _, PgConnection};

use super::{Store, StoreError};

/// Names the running server and the counter's storage. All of it changes only where commits may be lost: `system_identifier`
/// with a new cluster, the timeline with a promotion or a restore, the start time with a crash, the oid and relfilenode with
/// a dump that was loaded again.
const FINGERPRINT: &str = "select concat_ws('/',
    (select system_identifier from pg_control_system()),
    left(pg_walfile_name(pg_current_wal_lsn()), 8),
    to_char(pg_postmaster_start_time() at time zone 'utc', 'YYYYMMDD\"T\"HH24MISS.US'),
    'revision'::regclass::oid,
    pg_relation_filenode('revision'))";

/// Eras are Postgres milliseconds when they begin. One that is further ahead than this is no era of ours.
const FURTHEST_AHEAD_MS: u64 = 366 * 24 * 3_600_000;

/// What a new connection found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// The database is the one it was.
    Same(u64),
    /// It is not, or the counter is new; this era begins.
    New(u64),
}

/// Compares the database with the stored fingerprint and begins a new era where they differ. Every connection of the pool
/// does this before its first use.
pub(super) async fn check(connection: &mut PgConnection) -> Result<Era, sqlx::Error> {
    let stored: Option<(i64, String)> =
        sqlx::query_as("select era, fingerprint from revision where one").fetch_optional(&mut *connection).await?;
    let fingerprint: String = sqlx::query_scalar(FINGERPRINT).fetch_one(&mut *connection).await?;
    match stored {
        Some((era, known)) if known == fingerprint => Ok(Era::Same(era.cast_unsigned())),
        _ => begin(connection, &fingerprint).await,
    }
}

/// The first of several connections begins the era; the others wait for its row and find it done.
async fn begin(connection: &mut PgConnection, fingerprint: &str) -> Result<Era, sqlx::Error> {
    let mut tx = connection.begin().await?;
    sqlx::query("insert into revision (era, fingerprint) values (0, '') on conflict do nothing")
        .execute(&mut *tx)
        .await?;
    let (known_era, known): (i64, String) =
        sqlx::query_as("select era, fingerprint from revision where one for update").fetch_one(&mut *tx).await?;
    if known == fingerprint {
        tx.rollback().await?;
        return Ok(Era::Same(known_era.cast_unsigned()));
    }
    let era: i64 = sqlx::query_scalar(
        "update revision set fingerprint = $1,
           era = greatest(era + 1, (extract(epoch from clock_timestamp()) * 1000)::bigint)
         where one returning era",
    )
    .bind(fingerprint)
    .fetch_one(&mut *tx)
    .await?;
    sqlx::query("select pg_notify('sluicegate', '')").execute(&mut *tx).await?;
    tx.commit().await?;
    if is_restart(&known, fingerprint) {
        tracing::info!(era, "Postgres was restarted: Envoys fetch the policy again");
    } else if known.is_empty() {
        tracing::info!(era, "a new database");
    } else {
        tracing::warn!(
            era,
            previous = known_era,
            "the database is another, restored or promoted: Envoys fetch the policy again"
        );
    }
    Ok(Era::New(era.cast_unsigned()))
}

/// Whether two fingerprints differ in the start time alone.
fn is_restart(known: &str, now: &str) -> bool {
    let but_start = |fingerprint: &str| {
        let parts = fingerprint.split('/').enumerate();
        parts.filter(|(i, _)| *i != 2).map(|(_, part)| part.to_owned()).collect::<Vec<_>>()
    };
    but_start(known) == but_start(now)
}

/// An Envoy stated an era that cannot be ours.
#[derive(Debug, thiserror::Error)]
pub enum RaiseError {
    #[error("era {0} lies more than a year ahead")]
    Absurd(u64),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Store {
    /// Begins an era above `stated`, the era of an Envoy's Hello, unless the current one is that high already: an Envoy that
    /// knows a higher era has seen commits this database lost. Returns the era in force.
    ///
    /// # Errors
    /// [`RaiseError::Absurd`] for an era no database of ours can have reached.
    pub async fn raise_era(&self, stated: u64) -> Result<u64, RaiseError> {
        let now = self.clock().await?;
        let now_ms = u64::try_from(now.now_unix_ns / 1_000_000).unwrap_or(0);
        let stated = match i64::try_from(stated) {
            Ok(signed) if stated <= now.era.max(now_ms).saturating_add(FURTHEST_AHEAD_MS) => signed,
            _ => return Err(RaiseError::Absurd(stated)),
        };
        let raised: Option<i64> = sqlx::query_scalar(
            "update revision set era = greatest($1 + 1, (extract(epoch from clock_timestamp()) * 1000)::bigint)
             where one and era < $1 returning era",
        )
        .bind(stated)
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::from)?;
        let Some(era) = raised else { return Ok(self.clock().await?.era) };
        sqlx::query("select pg_notify('sluicegate', '')").execute(&self.pool).await.map_err(StoreError::from)?;
        tracing::warn!(era, stated, "a new era: an Envoy knows a higher one than this database; Envoys resync");
        Ok(era.cast_unsigned())
    }
}

#[cfg(test)]
mod tests {
    use super::is_restart;

    #[test]
    fn only_another_start_time_is_a_restart() {
        let known = "76/00000001/20300101T000000.000000/16384/16385";
        assert!(is_restart(known, "76/00000001/20300102T000000.000000/16384/16385"));
        assert!(!is_restart(known, "77/00000001/20300102T000000.000000/16384/16385"));
        assert!(!is_restart(known, "76/00000002/20300102T000000.000000/16384/16385"));
        assert!(!is_restart(known, "76/00000001/20300102T000000.000000/16384/16390"));
        assert!(!is_restart("", known));
    }
}
