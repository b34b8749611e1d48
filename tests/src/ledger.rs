//! What the ledger says, read with plain SQL: the tests' own eyes, not the product's.

use std::time::Duration;

use anyhow::ensure;
use sqlx::postgres::PgPool;
use uuid::Uuid;

use crate::run::eventually;

/// One row of `usage`.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Row {
    pub operation: Uuid,
    pub attempt: i32,
    pub last: bool,
    pub org_id: Option<i32>,
    pub key_id: Option<i32>,
    pub route: String,
    pub requested_model: String,
    pub stream: bool,
    pub input: i64,
    pub cache_read: i64,
    pub output: i64,
    pub reasoning: i64,
    pub source: String,
    pub cost_nano: Option<i64>,
    pub status: i32,
    pub upstream_status: Option<i32>,
    pub refusal: Option<String>,
    pub ended: String,
    pub session: Option<String>,
}

/// The ledger of one database.
#[derive(Clone, Debug)]
pub struct Ledger(PgPool);

impl Ledger {
    pub fn new(pool: PgPool) -> Self {
        Self(pool)
    }

    /// Everything that belongs to a key, oldest first.
    pub async fn of_key(&self, key: i32) -> anyhow::Result<Vec<Row>> {
        let sql = "select * from usage where key_id = $1 order by admitted_at, seq";
        Ok(sqlx::query_as(sql).bind(key).fetch_all(&self.0).await?)
    }

    /// Everything that belongs to a user, oldest first.
    pub async fn of_user(&self, user: i32) -> anyhow::Result<Vec<Row>> {
        let sql = "select * from usage where user_id = $1 order by admitted_at, seq";
        Ok(sqlx::query_as(sql).bind(user).fetch_all(&self.0).await?)
    }

    /// Waits until the key has `n` rows; more is a failure at once.
    pub async fn rows(&self, key: i32, n: usize) -> Vec<Row> {
        let rows = eventually("the ledger has the rows", Duration::from_secs(15), || async {
            let rows = self.of_key(key).await?;
            ensure!(rows.len() >= n, "{} of {n} rows", rows.len());
            Ok(rows)
        })
        .await;
        assert_eq!(rows.len(), n, "{rows:#?}");
        rows
    }

    /// Waits for the key's only row.
    pub async fn only(&self, key: i32) -> Row {
        self.rows(key, 1).await.remove(0)
    }

    /// How often each of these operations stands in the ledger: (never, more than once).
    pub async fn missing_and_doubled(&self, operations: &[Uuid]) -> anyhow::Result<(u64, u64)> {
        let sql = "select count(*) filter (where n = 0), count(*) filter (where n > 1) from
            (select o, (select count(*) from usage u where u.operation = o) n from unnest($1::uuid[]) o) x";
        let (missing, doubled): (i64, i64) = sqlx::query_as(sql).bind(operations).fetch_one(&self.0).await?;
        Ok((u64::try_from(missing)?, u64::try_from(doubled)?))
    }

    /// Waits until each operation stands there exactly once.
    pub async fn has_each_once(&self, operations: &[Uuid], within: Duration) {
        eventually("each operation is in the ledger once", within, || async {
            let (missing, doubled) = self.missing_and_doubled(operations).await?;
            ensure!((missing, doubled) == (0, 0), "{missing} missing, {doubled} doubled of {}", operations.len());
            Ok(())
        })
        .await;
    }

    /// Requests, attempts and nano-dollars of the hourly roll-ups of a key.
    pub async fn rolled_up(&self, key: i32) -> anyhow::Result<(i64, i64, i64)> {
        let sql = "select coalesce(sum(requests), 0)::bigint, coalesce(sum(attempts), 0)::bigint,
            coalesce(sum(cost_nano), 0)::bigint from usage_hourly where key_id = $1";
        Ok(sqlx::query_as(sql).bind(key).fetch_one(&self.0).await?)
    }

    pub fn pool(&self) -> &PgPool {
        &self.0
    }
}
