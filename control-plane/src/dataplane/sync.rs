//! One Sync stream.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use sluicegate_core::proto::dataplane::{
    Hello, PolicyVerdict, Standing, SyncDown, SyncUp, Welcome, sync_down::M, sync_up,
};
use sluicegate_core::state::feed::{Feed, HelloFacts, Next};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::Status;

use super::fence::{Fence, Subscriber};
use super::hello::{buckets_of, hello};
use super::offer::Offer;
use super::roster::Roster;
use super::sealed::Sealed;
use super::{ClustersReady, NodeIdentity};
use crate::publisher::{Published, Publisher};
use crate::store::{CREDENTIAL_SLOTS, EnvoyReport, PROFILE_SLOTS, RaiseError, Store, Verdict};

const SEATS: u32 = 16;
/// Of 60 KB: 4 MiB, the largest policy a filter takes.
const POLICY_PARTS: u32 = 72;
/// How long a stream waits for the first reading of the database.
const FIRST_READING: Duration = Duration::from_secs(10);

/// What all streams share.
#[derive(Clone)]
pub(super) struct Context {
    pub(super) store: Store,
    pub(super) publisher: Publisher,
    pub(super) clusters: Arc<dyn ClustersReady>,
    pub(super) fence: Fence,
    pub(super) roster: Roster,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

type Down = mpsc::Sender<Result<SyncDown, Status>>;

/// Runs one stream until the Envoy ends it or must say Hello again.
pub(super) async fn run<S>(context: Context, node: Arc<NodeIdentity>, mut up: S, down: Down) -> Result<(), Status>
where
    S: Stream<Item = Result<SyncUp, Status>> + Unpin,
{
    let hello = hello(&mut up).await?;
    let standing = hello.standing.unwrap_or_default();
    settle_era(&context, standing.era).await?;
    let mut published = context.publisher.subscribe();
    let first = timeout(FIRST_READING, published.wait_for(|p| p.as_ref().is_some_and(|p| p.clock.era >= standing.era)));
    let first = match first.await {
        Ok(Ok(first)) => first.clone(),
        Ok(Err(_)) | Err(_) => None,
    };
    let first = first.ok_or_else(|| Status::unavailable("the database is away, and nothing was read from it yet"))?;

    let name: Arc<str> = hello.node.as_str().into();
    let subscriber = Subscriber { node: Arc::clone(&name), boot: hello.boot, subscriber: hello.subscriber };
    let pass = context.fence.enter(subscriber, hello.epoch);
    let pass = pass.ok_or_else(|| Status::aborted("a stream of this subscriber with a higher epoch is open"))?;
    let _open = super::metric::OpenStream::new("sync");
    tracing::info!(
        node = hello.node,
        boot = hello.boot,
        subscriber = hello.subscriber,
        token = node.token_name,
        filter = hello.filter_version,
        envoy = hello.envoy_version,
        "an Envoy follows"
    );

    let buckets = buckets_of(&hello, &first);
    let mut stream = Sync::new(&context, node, &hello, buckets, Arc::clone(&first));
    let welcome = SyncDown { m: Some(M::Welcome(stream.welcome(buckets))) };
    if down.send(Ok(welcome)).await.is_err() {
        return Ok(());
    }
    stream.report(standing);
    // Its first mark is to come from a reading made now.
    context.publisher.refresh();
    tokio::select! {
        ended = stream.serve(&mut up, &down, &mut published) => ended,
        () = pass.overtaken() => Err(Status::aborted("a newer stream of this subscriber has come")),
    }
}

/// An Envoy that knows a higher era than the database has seen commits that the database lost.
async fn settle_era(context: &Context, stated: u64) -> Result<(), Status> {
    if context.publisher.latest().is_some_and(|p| p.clock.era >= stated) {
        return Ok(());
    }
    match timeout(FIRST_READING, context.store.raise_era(stated)).await {
        Ok(Ok(_)) => {
            context.publisher.refresh();
            Ok(())
        }
        Ok(Err(error @ RaiseError::Absurd(_))) => Err(Status::invalid_argument(error.to_string())),
        Ok(Err(RaiseError::Store(_))) | Err(_) => Err(Status::unavailable("the database is away; cannot compare eras")),
    }
}

/// One Envoy's place in what it is told.
struct Sync {
    roster: Roster,
    node: Arc<NodeIdentity>,
    /// What it said of itself last.
    report: EnvoyReport,
    subscriber: u32,
    feed: Feed,
    offer: Offer,
    credentials: Sealed,
    /// The whole list of blocked owners went out once: nothing is accepted before it.
    blocked_sent: bool,
    view: Arc<Published>,
}

impl Sync {
    fn new(context: &Context, node: Arc<NodeIdentity>, hello: &Hello, buckets: u32, view: Arc<Published>) -> Self {
        let standing = hello.standing.unwrap_or_default();
        let facts = HelloFacts {
            era: standing.era,
            key_revision: standing.key_revision,
            complete: standing.ready,
            buckets,
            profiles: PROFILE_SLOTS.unsigned_abs(),
        };
        let has_policy = (standing.era, standing.policy_revision);
        Self {
            roster: context.roster.clone(),
            report: EnvoyReport {
                boot: hello.boot,
                node: hello.node.clone(),
                group_id: node.group_id,
                filter_version: hello.filter_version.clone(),
                envoy_version: hello.envoy_version.clone(),
                standing,
            },
            subscriber: hello.subscriber,
            feed: Feed::new(facts),
            offer: Offer::new(Arc::clone(&context.clusters), hello.node.as_str().into(), has_policy, Instant::now()),
            credentials: Sealed::new(&view.of(node.group_id)),
            blocked_sent: false,
            node,
            view,
        }
    }

    fn welcome(&self, buckets: u32) -> Welcome {
        Welcome {
            era: self.view.clock.era,
            now_unix_ns: self.view.now_unix_ns(),
            seats: SEATS,
            buckets,
            profiles: PROFILE_SLOTS.unsigned_abs(),
            credentials: CREDENTIAL_SLOTS.unsigned_abs(),
            policy_parts: POLICY_PARTS,
            group: self.node.group.clone(),
        }
    }

    async fn serve<S>(
        &mut self,
        up: &mut S,
        down: &Down,
        published: &mut watch::Receiver<Option<Arc<Published>>>,
    ) -> Result<(), Status>
    where
        S: Stream<Item = Result<SyncUp, Status>> + Unpin,
    {
        let mut more = true;
        loop {
            let waits = self.offer.is_unoffered(self.view.of(self.node.group_id).policy());
            let ask_again = self.offer.ask_again_at();
            tokio::select! {
                biased;
                changed = published.changed() => {
                    changed.map_err(|_| Status::unavailable("this control plane is stopping; connect again"))?;
                    if let Some(view) = published.borrow_and_update().clone() {
                        self.follow(view);
                    }
                    more = true;
                }
                message = up.next() => match message.transpose()? {
                    Some(message) => self.on_message(message)?,
                    None => return Ok(()),
                },
                Ok(()) = self.offer.ready.changed(), if waits => more = true,
                () = sleep_until(ask_again), if waits && !more => more = true,
                room = down.reserve(), if more => {
                    let Ok(room) = room else { return Ok(()) };
                    match self.next()? {
                        Some(message) => room.send(Ok(message)),
                        None => more = false,
                    }
                }
            }
        }
    }

    /// A newer version of everything, with the clock for the next mark.
    fn follow(&mut self, view: Arc<Published>) {
        self.feed.tick(view.reading());
        self.view = view;
    }

    /// Keys in order of urgency: the blocked list once, then what changed for a caught-up Envoy; an Envoy in a resync gets
    /// policy and credentials before the rest of its keys.
    fn next(&mut self) -> Result<Option<SyncDown>, Status> {
        let state_first = self.blocked_sent && self.feed.resyncing();
        if state_first && let Some(message) = self.policy_or_credential() {
            return Ok(Some(message));
        }
        match self.feed.next(&self.view.of(self.node.group_id)) {
            Next::Send(message) => {
                self.note(&message);
                Ok(Some(message))
            }
            Next::Idle => Ok(self.policy_or_credential()),
            Next::NewEra => Err(Status::unavailable("a new era; say hello again")),
        }
    }

    fn policy_or_credential(&mut self) -> Option<SyncDown> {
        let view = self.view.of(self.node.group_id);
        let offered = self.offer.next(view.policy(), Instant::now());
        offered.or_else(|| self.credentials.next(&view, &self.node.seal_key))
    }

    fn note(&mut self, message: &SyncDown) {
        match &message.m {
            Some(M::Blocked(part)) if part.index + 1 == part.count => self.blocked_sent = true,
            Some(M::Mark(mark)) => {
                metrics::counter!("sluicegate_marks_sent_total").increment(1);
                if mark.to > mark.from {
                    let latency = self.view.woken_at.elapsed();
                    metrics::histogram!("sluicegate_commit_to_send_seconds").record(latency.as_secs_f64());
                }
            }
            Some(M::ResyncEnd(_)) => metrics::counter!("sluicegate_resyncs_total").increment(1),
            _ => {}
        }
    }

    fn on_message(&mut self, message: SyncUp) -> Result<(), Status> {
        match message.m {
            Some(sync_up::M::Standing(standing)) => self.report(standing),
            Some(sync_up::M::Verdict(verdict)) => self.judge(verdict),
            Some(sync_up::M::Hello(_)) => return Err(Status::failed_precondition("a second hello")),
            // A message of a newer filter.
            None => {}
        }
        Ok(())
    }

    fn report(&mut self, standing: Standing) {
        self.report.standing = standing;
        self.roster.report(self.report.clone());
    }

    fn judge(&self, verdict: PolicyVerdict) {
        let PolicyVerdict { revision, accepted, field, message, .. } = verdict;
        if !accepted {
            metrics::counter!("sluicegate_policies_refused_total").increment(1);
            tracing::error!(
                node = self.report.node,
                boot = self.report.boot,
                subscriber = self.subscriber,
                revision,
                field,
                message,
                "an Envoy refuses a policy and keeps the one it has"
            );
        }
        let refused = (!accepted).then(|| (cut(&field), cut(&message)));
        self.roster.verdict(Verdict { boot: self.report.boot, revision, refused });
    }
}

/// What a column takes.
fn cut(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(500).collect()
}
