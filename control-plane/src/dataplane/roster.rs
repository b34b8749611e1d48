//! What Envoys say of themselves, on its way into the store: at most one write per boot and second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::store::{EnvoyReport, Store, StoreError, Verdict};

const INTERVAL: Duration = Duration::from_secs(1);
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The latest word of each boot that is not written yet; cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Roster {
    pending: Arc<Mutex<Pending>>,
}

/// Bounded by the Envoys that are connected: the newer word of a boot replaces the older.
#[derive(Debug, Default)]
struct Pending {
    reports: HashMap<u64, EnvoyReport>,
    verdicts: HashMap<u64, Verdict>,
}

impl Roster {
    /// Starts the writer. It ends with the last clone.
    pub(super) fn spawn(store: Store) -> Self {
        let roster = Self { pending: Arc::default() };
        tokio::spawn(write(store, Arc::downgrade(&roster.pending)));
        roster
    }

    pub(super) fn report(&self, report: EnvoyReport) {
        self.lock().reports.insert(report.boot, report);
    }

    /// A boot has two subscribers and both judge; of two verdicts the one on the newer policy stays.
    pub(super) fn verdict(&self, verdict: Verdict) {
        let mut pending = self.lock();
        let newest = pending.verdicts.get(&verdict.boot).map_or(0, |v| v.revision);
        if verdict.revision >= newest {
            pending.verdicts.insert(verdict.boot, verdict);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(store: Store, pending: Weak<Mutex<Pending>>) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(pending) = pending.upgrade() else { return };
        let batch = std::mem::take(&mut *pending.lock().unwrap_or_else(PoisonError::into_inner));
        if batch.reports.is_empty() && batch.verdicts.is_empty() {
            continue;
        }
        let written = timeout(WRITE_TIMEOUT, flush(&store, &batch)).await;
        let reason = match written {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(elapsed) => elapsed.to_string(),
        };
        tracing::warn!(reason, "what Envoys say of themselves is not written yet");
        // Newer words have precedence over those that come back.
        let mut now = pending.lock().unwrap_or_else(PoisonError::into_inner);
        for (boot, report) in batch.reports {
            now.reports.entry(boot).or_insert(report);
        }
        for (boot, verdict) in batch.verdicts {
            now.verdicts.entry(boot).or_insert(verdict);
        }
    }
}

/// A VM of an Envoy's filter died since that Envoy's last word. Its place is taken at once; that it happens is a fault.
fn alarm(report: &EnvoyReport, before: u32) {
    let traps = report.standing.traps;
    let more = traps.saturating_sub(before);
    if more > 0 {
        metrics::counter!("sluicegate_envoy_traps_total").increment(more.into());
        tracing::error!(
            node = report.node,
            boot = report.boot,
            envoy = report.envoy_version,
            filter = report.filter_version,
            traps,
            "a VM of an Envoy's filter trapped: its streams are broken, its records are in the access log (reconcile)"
        );
    }
}

async fn flush(store: &Store, batch: &Pending) -> Result<(), StoreError> {
    let reports: Vec<_> = batch.reports.values().cloned().collect();
    if !reports.is_empty() {
        let before = store.note_envoys(&reports).await?;
        for report in &reports {
            alarm(report, before.get(&report.boot).copied().unwrap_or(0));
        }
    }
    for verdict in batch.verdicts.values() {
        store.note_verdict(verdict).await?;
    }
    Ok(())
}
