//! Records of all streams on their way into the database.
//!
//! One writer commits whatever has gathered while it was busy: alone and at once when the database is fast, thousands in one
//! statement when it is slow. Memory is bounded by [`MAX_WAITING`] records; who brings more waits.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_core::proto::dataplane::Source;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::prices::{Checked, Prices};
use crate::publisher::Publisher;
use crate::store::{LedgerRow, Recorded, Store, Witness};

/// Records in memory, about a kilobyte each.
const MAX_WAITING: usize = 20_000;
/// Rows in one statement.
const MAX_COMMIT: usize = 4_000;
/// A database that takes longer, or does not come back for so long, has failed this commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The way into the ledger; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    publisher: Publisher,
    prices: Arc<Prices>,
    writer: mpsc::Sender<Batch>,
    room: Arc<Semaphore>,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Every record is in the ledger, or was already, or can never be.
    Committed,
    /// The database did not say yes.
    Failed,
}

#[derive(Debug)]
struct Batch {
    rows: Vec<LedgerRow>,
    done: oneshot::Sender<Outcome>,
    /// Given back when the batch is dropped.
    room: OwnedSemaphorePermit,
}

impl Ledger {
    /// Starts the writer. It ends with the last clone.
    pub(super) fn spawn(store: Store, publisher: Publisher) -> Self {
        let (writer, batches) = mpsc::channel(1024);
        tokio::spawn(write(store.clone(), batches));
        let prices = Arc::new(Prices::new(store));
        Self { publisher, prices, writer, room: Arc::new(Semaphore::new(MAX_WAITING)) }
    }

    /// Books `records`; returns once they are durable or the database failed.
    pub(super) async fn book(&self, records: Vec<Recorded>) -> Outcome {
        metrics::counter!("sluicegate_usage_records_received_total").increment(records.len() as u64);
        let count = u32::try_from(records.len().min(MAX_WAITING)).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.room).acquire_many_owned(count).await else { return Outcome::Failed };
        let Some(rows) = self.check(records).await else { return Outcome::Failed };
        if rows.is_empty() {
            return Outcome::Committed;
        }
        let (done, committed) = oneshot::channel();
        if self.writer.send(Batch { rows, done, room }).await.is_err() {
            return Outcome::Failed;
        }
        committed.await.unwrap_or(Outcome::Failed)
    }

    /// The rows that make sense; their costs are compared with what the control plane would have charged.
    async fn check(&self, records: Vec<Recorded>) -> Option<Vec<LedgerRow>> {
        let now = self.publisher.first(COMMIT_TIMEOUT).await?.now_unix_ns();
        let mut rows = Vec::with_capacity(records.len());
        for recorded in &records {
            match LedgerRow::check(recorded, Witness::Flow, now) {
                Ok(row) => rows.push(row),
                Err(rejection) => {
                    metrics::counter!("sluicegate_usage_records_rejected_total", "reason" => rejection.label())
                        .increment(1);
                    tracing::warn!(
                        node = &*recorded.node, boot = recorded.boot, vm = recorded.vm, seq = recorded.record.seq,
                        reason = %rejection, "a usage record makes no sense and is left out"
                    );
                    continue;
                }
            }
            if recorded.record.source() != Source::None {
                self.check_cost(recorded).await;
            }
        }
        Some(rows)
    }

    async fn check_cost(&self, recorded: &Recorded) {
        let record = &recorded.record;
        match self.prices.check(record).await {
            Checked::Agrees | Checked::Unknown => {}
            Checked::Differs { expected } => {
                metrics::counter!("sluicegate_usage_cost_mismatches_total").increment(1);
                tracing::error!(
                    node = &*recorded.node,
                    boot = recorded.boot,
                    vm = recorded.vm,
                    seq = record.seq,
                    backend = record.backend,
                    policy_revision = record.policy_revision,
                    booked_nano = record.cost_nano,
                    expected_nano = expected.map(|e| e.0),
                    "an Envoy and the control plane price an attempt differently"
                );
            }
        }
    }
}

async fn write(store: Store, mut batches: mpsc::Receiver<Batch>) {
    while let Some(first) = batches.recv().await {
        let mut count = first.rows.len();
        let mut together = vec![first];
        while count < MAX_COMMIT
            && let Ok(next) = batches.try_recv()
        {
            count += next.rows.len();
            together.push(next);
        }
        commit(&store, together, count).await;
    }
}

async fn commit(store: &Store, batches: Vec<Batch>, count: usize) {
    let mut rows = Vec::with_capacity(count);
    let mut waiting = Vec::with_capacity(batches.len());
    for batch in batches {
        rows.extend(batch.rows);
        waiting.push((batch.done, batch.room));
    }
    let began = Instant::now();
    let outcome = match timeout(COMMIT_TIMEOUT, store.insert_usage(rows)).await {
        Ok(Ok(done)) => {
            metrics::counter!("sluicegate_usage_records_inserted_total").increment(done.inserted);
            metrics::counter!("sluicegate_usage_records_duplicate_total").increment(done.duplicate);
            metrics::counter!("sluicegate_usage_records_rejected_total", "reason" => "database")
                .increment(done.rejected);
            metrics::histogram!("sluicegate_usage_commit_seconds").record(began.elapsed().as_secs_f64());
            Outcome::Committed
        }
        Ok(Err(error)) => {
            tracing::warn!(records = count, %error, "usage records are not in the ledger yet; Envoys send them again");
            Outcome::Failed
        }
        Err(_) => {
            tracing::warn!(records = count, "the database takes too long; Envoys send usage records again");
            Outcome::Failed
        }
    };
    for (done, _room) in waiting {
        // The stream may be gone; its Envoy sends the records again and they are duplicates.
        let _ = done.send(outcome);
    }
}
