//! The task that follows the store.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluicegate_core::state::record::{Flags, KeyRecord};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::index::Builder;
use super::{Change, Credential, KeyIndex, PolicyParts, Published, Scoped};
use crate::credentials::{self, Keyring, ResolveError, Secret, Source};
use crate::store::{
    CredentialRow, FeedReader, KeyChange, KeyReading, KeyRow, PROFILE_SLOTS, PolicyRow, ProfileRow, Reading, Scope,
    Store, StoreError,
};

const POLL: Duration = Duration::from_secs(1);
/// A database that does not answer a poll within this is away. Loading every key may take longer.
const POLL_TIMEOUT: Duration = Duration::from_secs(5);
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
const BACKOFF: std::ops::RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(1);

/// Twice as many as can live together.
const MAX_PROFILES: usize = 2 * PROFILE_SLOTS.unsigned_abs() as usize;

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
    keyring: Arc<Keyring>,
    sender: watch::Sender<Option<Arc<Published>>>,
    /// Somebody wants a reading now.
    now: Arc<Notify>,
    /// Credentials whose secret could not be read; tried again with each reading.
    unread: Vec<Unread>,
}

struct Unread {
    row: CredentialRow,
    /// Why, as it was logged.
    error: String,
}

impl Follower {
    pub(super) fn new(
        store: Store,
        keyring: Arc<Keyring>,
        sender: watch::Sender<Option<Arc<Published>>>,
        now: Arc<Notify>,
    ) -> Self {
        Self { store, keyring, sender, now, unread: Vec::new() }
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
                () = self.now.notified() => POLL_TIMEOUT,
            };
            timeout(limit, self.round(&mut reader)).await??;
        }
    }

    /// Reads what is new and publishes it.
    async fn round(&mut self, reader: &mut FeedReader) -> Result<(), StoreError> {
        let woken_at = Instant::now();
        let last = self.sender.borrow().clone();
        let mut builder = Builder::default();
        let mut reading =
            reader.read(last.as_ref().map(|l| l.clock), &mut |key: KeyRow| builder.push(&record(&key))).await?;
        let rows = reading.credentials.take();
        let credential_ids = match (&rows, &last) {
            (None, Some(last)) => Arc::clone(&last.credential_ids),
            (rows, _) => Arc::new(rows.iter().flatten().map(|row| row.id).collect()),
        };
        let credentials = self.credentials(last.as_deref(), rows).await;
        let next = Published { woken_at, credentials, credential_ids, ..next(last.as_deref(), reading, builder) };
        report(last.as_deref(), &next);
        self.sender.send_replace(Some(Arc::new(next)));
        Ok(())
    }

    /// The credentials that can be opened now, by id. One that cannot is missing, and tried again.
    async fn credentials(&mut self, last: Option<&Published>, rows: Option<Vec<CredentialRow>>) -> Arc<[Credential]> {
        let (mut opened, rows) = match (rows, last) {
            (Some(rows), _) => (Vec::new(), rows),
            (None, Some(last)) if self.unread.is_empty() => return Arc::clone(&last.credentials),
            (None, last) => {
                let rows = self.unread.iter().map(|unread| unread.row.clone()).collect();
                (last.map(|l| l.credentials.to_vec()).unwrap_or_default(), rows)
            }
        };
        let mut unread = Vec::new();
        for row in rows {
            let before = self.unread.iter().find(|unread| unread.row.id == row.id);
            match self.open(&row).await {
                Ok(secret) => {
                    if before.is_some() {
                        tracing::info!(credential = row.name, "a provider credential can be read again");
                    }
                    opened.push(Credential { id: row.id, revision: row.revision, secret });
                }
                Err(error) => {
                    let error = error.to_string();
                    // Once per change, though it is tried every second.
                    if before.is_none_or(|before| before.error != error || before.row.revision != row.revision) {
                        metrics::counter!("sluicegate_credentials_unreadable_total").increment(1);
                        let (name, source) = (&row.name, &row.source);
                        tracing::error!(credential = name, source, error, "cannot read a provider credential");
                    }
                    unread.push(Unread { row, error });
                }
            }
        }
        self.unread = unread;
        opened.sort_by_key(|c| c.id);
        opened.into()
    }

    async fn open(&self, row: &CredentialRow) -> Result<Secret, ResolveError> {
        let source: Source = row.source.parse().map_err(|_| ResolveError::Missing)?;
        credentials::resolve(row.id, &source, row.sealed.as_deref(), &self.keyring).await
    }
}

fn next(last: Option<&Published>, reading: Reading, builder: Builder) -> Published {
    let Reading { clock, read_at, .. } = reading;
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
    let (policy, scopes) = match (reading.policy, last) {
        (None, Some(last)) => (last.policy.clone(), Arc::clone(&last.scopes)),
        (row, _) => policies(clock.era, row.flatten(), reading.scopes.unwrap_or_default()),
    };
    let blocked = match (reading.blocked, last) {
        (Some(owners), _) => owners.into(),
        (None, last) => last.map_or_else(|| Arc::from([]), |l| Arc::clone(&l.blocked)),
    };
    Published {
        clock,
        read_at,
        woken_at: read_at,
        keys,
        profiles,
        blocked,
        policy,
        scopes,
        credentials: Arc::from([]),
        credential_ids: Arc::default(),
    }
}

/// The policy, and what each group that has limits may have of it.
fn policies(
    era: u64,
    row: Option<PolicyRow>,
    scopes: Vec<Scope>,
) -> (Option<Arc<PolicyParts>>, Arc<HashMap<i32, Scoped>>) {
    let whole = row.map(|row| (row.clone(), Arc::new(PolicyParts::cut(era, row))));
    let scoped = |scope: Scope| Some((scope.group, Scoped::new(era, whole.as_ref(), scope)?));
    let scopes = scopes.into_iter().filter_map(scoped).collect();
    (whole.map(|(_, parts)| parts), Arc::new(scopes))
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
        .map(|c| Change { prefix: c.prefix, revision: c.revision, records: c.keys.iter().map(record).collect() })
        .collect();
    let keys = last.keys.with(&changes);
    if profiles.iter().all(|(id, _)| last.profiles.contains_key(id)) {
        return (keys, Arc::clone(&last.profiles));
    }
    let mut known = HashMap::clone(&last.profiles);
    known.extend(profiles.into_iter().map(|(id, body)| (id, Bytes::from(body))));
    // Not every time: it looks at every key.
    if known.len() > MAX_PROFILES {
        let named: HashSet<u32> = keys.records().map(|record| record.profile).collect();
        known.retain(|id, _| named.contains(id));
    }
    (keys, Arc::new(known))
}

fn record(row: &KeyRow) -> KeyRecord {
    let [hash @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = row.hash;
    KeyRecord {
        hash,
        org: row.org,
        team: row.team,
        user: row.user,
        key: row.id,
        profile: row.profile,
        // 0 would be never; a key that expired before 1970 expired.
        expires_unix: row.expires_at.map_or(0, |at| u64::try_from(at).unwrap_or(0).max(1)),
        flags: if row.disabled { Flags::DISABLED } else { 0 },
    }
}
