//! The task that follows the store.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::index::Builder;
use super::{Change, Credential, KeyIndex, OpenCredential, PolicyParts, Published, record};
use crate::store::{CredentialRow, FeedReader, KeyChange, KeyReading, KeyRow, ProfileRow, Reading, Store, StoreError};

/// Profiles kept before those that no key names are looked for and forgotten.
const MAX_PROFILES: usize = 8_192;

const POLL: Duration = Duration::from_secs(1);
/// A database that does not answer a poll within this is away. Loading every key may take longer.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
const BACKOFF: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(1);

/// Why a round of following ended.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the database does not answer")]
    Timeout(#[from] tokio::time::error::Elapsed),
}

pub(super) struct Follower {
    store: Store,
    credentials: Arc<dyn OpenCredential>,
    sender: watch::Sender<Option<Arc<Published>>>,
    /// Rows whose secrets may change without a commit (files), to be opened again at each poll.
    credential_rows: Vec<CredentialRow>,
}

impl Follower {
    pub(super) fn new(
        store: Store,
        credentials: Arc<dyn OpenCredential>,
        sender: watch::Sender<Option<Arc<Published>>>,
    ) -> Self {
        Self { store, credentials, sender, credential_rows: Vec::new() }
    }

    /// Until nobody listens any more.
    pub(super) async fn run(mut self) {
        let mut backoff = *BACKOFF.start();
        loop {
            let began = Instant::now();
            let closed = self.sender.clone();
            let lost = tokio::select! {
                () = closed.closed() => return,
                lost = self.follow() => lost,
            };
            if began.elapsed() > *BACKOFF.end() {
                backoff = *BACKOFF.start();
            }
            metrics::counter!("sluicegate_publisher_reconnects_total").increment(1);
            tracing::warn!(reason = %lost, retry_in = ?backoff, "lost the database; Envoys keep what they have");
            sleep(backoff).await;
            backoff = (backoff * 2).min(*BACKOFF.end());
        }
    }

    /// Follows until the database is lost.
    async fn follow(&mut self) -> Lost {
        match self.follow_on().await {
            Ok(never) => match never {},
            Err(lost) => lost,
        }
    }

    async fn follow_on(&mut self) -> Result<std::convert::Infallible, Lost> {
        // Listening comes before the first reading: a commit in between is heard.
        let mut commits = timeout(POLL_TIMEOUT, self.store.listen()).await??;
        let mut reader = timeout(POLL_TIMEOUT, self.store.feed_reader()).await??;
        timeout(LOAD_TIMEOUT, self.round(&mut reader)).await??;
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let limit = tokio::select! {
                commit = commits.next() => commit.map(|()| LOAD_TIMEOUT)?,
                _ = poll.tick() => POLL_TIMEOUT,
            };
            timeout(limit, self.round(&mut reader)).await??;
        }
    }

    /// Reads what is new and publishes it.
    async fn round(&mut self, reader: &mut FeedReader) -> Result<(), StoreError> {
        let last = self.sender.borrow().clone();
        let mut builder = Builder::default();
        let reading =
            reader.read(last.as_ref().map(|l| l.clock), &mut |key: KeyRow| builder.push(record::encode(&key))).await?;
        let next = self.next(last.as_deref(), reading, builder);
        report(last.as_deref(), &next);
        self.sender.send_replace(Some(Arc::new(next)));
        Ok(())
    }

    fn next(&mut self, last: Option<&Published>, reading: Reading, builder: Builder) -> Published {
        let clock = reading.clock;
        let (keys, profiles) = match (reading.keys, last) {
            (None, Some(last)) => (last.keys.clone(), Arc::clone(&last.profiles)),
            (Some(KeyReading::Changed { changes, profiles }), Some(last)) => apply(last, changes, profiles),
            (Some(KeyReading::Whole { profiles, log_start, changed }), _) => {
                let profiles = profiles.into_iter().map(|(id, body)| (id, Bytes::from(body))).collect();
                (builder.finish(log_start, changed), Arc::new(profiles))
            }
            // A first reading is whole.
            (None | Some(KeyReading::Changed { .. }), None) => (builder.finish(clock.revision, []), Arc::default()),
        };
        let policy = match reading.policy {
            Some(row) => row.map(|row| Arc::new(PolicyParts::cut(clock.era, row))),
            None => last.and_then(|l| l.policy.clone()),
        };
        let blocked = match (reading.blocked, last) {
            (Some(owners), _) => owners.into(),
            (None, last) => last.map_or_else(|| Arc::from([]), |l| Arc::clone(&l.blocked)),
        };
        let credentials = self.open_credentials(last, reading.credentials);
        Published { clock, read_at: Instant::now(), keys, profiles, blocked, policy, credentials }
    }

    /// Secrets in files and variables can change without a commit, so each poll looks at those again; a credential is only
    /// replaced where something about it changed.
    fn open_credentials(&mut self, last: Option<&Published>, rows: Option<Vec<CredentialRow>>) -> Arc<[Credential]> {
        if let Some(rows) = rows {
            self.credential_rows = rows;
        }
        let opened: Arc<[Credential]> = self.credential_rows.iter().map(|row| self.open(row)).collect();
        match last {
            Some(last) if last.credentials == opened => Arc::clone(&last.credentials),
            _ => opened,
        }
    }

    fn open(&self, row: &CredentialRow) -> Credential {
        let secret = self.credentials.open(row).map_err(|reason| {
            metrics::counter!("sluicegate_credentials_unreadable_total").increment(1);
            tracing::error!(credential = row.id, source = row.source, reason, "cannot read a provider credential");
        });
        Credential { id: row.id, revision: row.revision, secret: secret.ok() }
    }
}

fn report(last: Option<&Published>, next: &Published) {
    if last.is_none_or(|l| l.clock.revision != next.clock.revision || l.clock.era != next.clock.era) {
        metrics::gauge!("sluicegate_revision").set(next.clock.revision as f64);
        metrics::gauge!("sluicegate_era").set(next.clock.era as f64);
        metrics::gauge!("sluicegate_keys").set(next.keys.len() as f64);
        metrics::gauge!("sluicegate_blocked_owners").set(next.blocked.len() as f64);
        tracing::debug!(era = next.clock.era, revision = next.clock.revision, keys = next.keys.len(), "published");
    }
}

fn apply(last: &Published, changes: Vec<KeyChange>, profiles: Vec<ProfileRow>) -> (KeyIndex, Arc<HashMap<u32, Bytes>>) {
    let changes: Vec<Change> = changes
        .into_iter()
        .map(|c| Change {
            prefix: c.prefix,
            revision: c.revision,
            records: c.keys.iter().map(record::encode).collect(),
        })
        .collect();
    let keys = last.keys.with(&changes);
    if profiles.iter().all(|(id, _)| last.profiles.contains_key(id)) {
        return (keys, Arc::clone(&last.profiles));
    }
    let mut known = HashMap::clone(&last.profiles);
    known.extend(profiles.into_iter().map(|(id, body)| (id, Bytes::from(body))));
    if known.len() > MAX_PROFILES {
        let named: HashSet<u32> = keys.records().map(record::profile).collect();
        known.retain(|id, _| named.contains(id));
    }
    (keys, Arc::new(known))
}
