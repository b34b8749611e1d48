//! What must be swept and laid out now and then. Each step is its own transaction; several replicas may do it at once.

use std::sync::Arc;
use std::time::Duration;

use chrono::{Days, NaiveDate};
use tokio::time::sleep;

use super::{Store, StoreError};
use crate::credentials::Keyring;

/// What one round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub key_changes: u64,
    /// Deleted owners whose block was kept for a day.
    pub gone_owners: u64,
    pub policies: u64,
    pub partitions: u64,
}

/// How often [`Store::maintain`] is due.
const INTERVAL: Duration = Duration::from_secs(3600);
/// After a round that failed.
const RETRY: Duration = Duration::from_secs(30);

const PARTITIONS_AHEAD: u64 = 7;

impl Store {
    /// Cuts the change log, drops what nobody refers to any more and lays out the ledger's next days.
    ///
    /// # Errors
    /// When the database does not answer; what was done before stays done.
    pub async fn maintain(&self) -> Result<Swept, StoreError> {
        let mut swept = Swept { partitions: self.create_partitions().await?, ..Swept::default() };
        // By revision, so that what is left has no holes even where transactions began in another order than they committed.
        swept.key_changes = self
            .execute(
                "delete from key_change where revision <=
                   (select max(revision) from key_change where at < now() - interval '24 hours')",
            )
            .await?;
        swept.gone_owners = self.forget_gone_owners().await?;
        // Superseded for 30 days and in force nowhere: no record that it priced can still come.
        swept.policies = self
            .execute(
                "delete from policy p
                 where exists (select from policy n where n.revision > p.revision and n.created_at < now() - interval '30 days')
                   and not exists (select from envoy e where e.policy_revision = p.revision)",
            )
            .await?;
        Ok(swept)
    }

    /// One partition of the ledger per day. A day that has none is kept in the default partition and stays there.
    async fn create_partitions(&self) -> Result<u64, StoreError> {
        let today: NaiveDate =
            sqlx::query_scalar("select (now() at time zone 'utc')::date").fetch_one(&self.pool).await?;
        let mut created = 0;
        for ahead in 0..=PARTITIONS_AHEAD {
            let Some((day, next)) = today.checked_add_days(Days::new(ahead)).and_then(|d| Some((d, d.succ_opt()?)))
            else {
                break;
            };
            created += u64::from(self.create_partition(day, next).await?);
        }
        Ok(created)
    }

    async fn create_partition(&self, day: NaiveDate, next: NaiveDate) -> Result<bool, StoreError> {
        let name = format!("usage_{}", day.format("%Y%m%d"));
        let mut tx = self.pool.begin().await?;
        sqlx::query("select pg_advisory_xact_lock(hashtextextended('sluicegate.usage.partitions', 0))")
            .execute(&mut *tx)
            .await?;
        let exists: bool =
            sqlx::query_scalar("select to_regclass($1) is not null").bind(&name).fetch_one(&mut *tx).await?;
        let in_default: bool = sqlx::query_scalar("select exists (select from usage_default where day = $1)")
            .bind(day)
            .fetch_one(&mut *tx)
            .await?;
        if exists || in_default {
            return Ok(false);
        }
        // Attaching locks the table; behind a long read it would hold up every insert.
        sqlx::query("set local lock_timeout = '2s'").execute(&mut *tx).await?;
        let create = format!("create table {name} partition of usage for values from ('{day}') to ('{next}')");
        sqlx::query(sqlx::AssertSqlSafe(create)).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Maintains at once and then every hour; the caller drops it to end it.
    pub async fn keep_up(self, keyring: Arc<Keyring>) {
        loop {
            let done = match self.maintain().await {
                Ok(swept) => self.forget_old_identities(&keyring).await.map(|identities| (swept, identities)),
                Err(error) => Err(error.into()),
            };
            match done {
                Ok((swept, identities)) => {
                    tracing::debug!(?swept, identities, "maintained the store");
                    sleep(INTERVAL).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "could not maintain the store");
                    sleep(RETRY).await;
                }
            }
        }
    }

    async fn execute(&self, statement: &'static str) -> Result<u64, StoreError> {
        Ok(sqlx::query(statement).execute(&self.pool).await?.rows_affected())
    }
}
