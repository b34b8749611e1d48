//! The ledger: one row per attempt, each exactly once, and its hourly sums.
//!
//! An Envoy sends a record until it is acknowledged, and the access log may bring it once more. Its key (day, boot, vm, seq)
//! was minted at admission, so a second arrival inserts nothing, and only rows really inserted are added to the sums: both in
//! one statement.

mod columns;
mod row;

pub use row::{LedgerRow, Recorded, Rejection, Witness};

use columns::{Columns, INSERT};

use super::{Store, StoreError};

/// What an insert did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// Rows that were not there.
    pub inserted: u64,
    /// Rows that were there already.
    pub duplicate: u64,
    /// Rows the database refuses for what is in them; sending them again would not help.
    pub rejected: u64,
}

impl std::ops::AddAssign for Inserted {
    fn add_assign(&mut self, other: Self) {
        self.inserted += other.inserted;
        self.duplicate += other.duplicate;
        self.rejected += other.rejected;
    }
}

impl Store {
    /// Inserts what is not there yet and adds it to the hourly sums. When it returns `Ok`, everything is durable.
    ///
    /// # Errors
    /// When the database does not answer. Nothing, or some of the rows, may have been inserted: do it again.
    pub async fn insert_usage(&self, mut rows: Vec<LedgerRow>) -> Result<Inserted, StoreError> {
        // One order in every replica: two inserts of the same rows wait for each other instead of deadlocking.
        rows.sort_unstable_by_key(LedgerRow::key);
        let mut done = Inserted::default();
        let mut todo = vec![rows];
        while let Some(mut rows) = todo.pop() {
            let count = rows.len() as u64;
            match self.insert_rows(&rows).await {
                Ok(inserted) => {
                    done += Inserted { inserted, duplicate: count - inserted, rejected: 0 };
                }
                Err(sqlx::Error::Database(error)) if is_about_data(error.as_ref()) => {
                    // One bad row must not keep the others out: halve until it stands alone.
                    if rows.len() > 1 {
                        let right = rows.split_off(rows.len() / 2);
                        todo.extend([right, rows]);
                    } else {
                        tracing::error!(code = ?error.code(), "the database refuses a usage record");
                        done.rejected += count;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(done)
    }

    async fn insert_rows(&self, rows: &[LedgerRow]) -> Result<u64, sqlx::Error> {
        if rows.is_empty() {
            return Ok(0);
        }
        let columns = Columns::from_rows(rows);
        let inserted: i64 = columns.bind(sqlx::query_scalar(INSERT)).fetch_one(&self.pool).await?;
        Ok(inserted.cast_unsigned())
    }
}

/// SQLSTATE classes 22 (data exception) and 23 (constraint violation).
fn is_about_data(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.code().is_some_and(|code| code.starts_with("22") || code.starts_with("23"))
}

/// What a [`Store::reconcile_records`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    pub seen: u64,
    /// In the ledger before.
    pub already: u64,
    pub added: u64,
    /// Records that make no sense.
    pub rejected: u64,
}

impl Store {
    /// Adds what only the access log saw; such rows bear the witness `log`.
    ///
    /// # Errors
    /// When the database does not answer. Do it again: what is there is left alone.
    pub async fn reconcile_records(&self, records: Vec<Recorded>) -> Result<Reconciled, StoreError> {
        const BATCH: usize = 1000;
        let mut total = Reconciled { seen: records.len() as u64, ..Reconciled::default() };
        let now = self.clock().await?.now_unix_ns;
        for batch in records.chunks(BATCH) {
            let rows: Vec<_> = batch.iter().filter_map(|r| LedgerRow::check(r, Witness::Log, now).ok()).collect();
            total.rejected += (batch.len() - rows.len()) as u64;
            let done = self.insert_usage(rows).await?;
            total.added += done.inserted;
            total.already += done.duplicate;
            total.rejected += done.rejected;
        }
        Ok(total)
    }

    /// The encoded `Snapshot` that was in force at `revision`.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn policy_at(&self, revision: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let Ok(revision) = i64::try_from(revision) else { return Ok(None) };
        let query =
            sqlx::query_scalar("select snapshot from policy where revision <= $1 order by revision desc limit 1");
        Ok(query.bind(revision).fetch_optional(&self.pool).await?)
    }
}
