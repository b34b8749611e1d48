//! What a VM does by itself, on ticks and on messages of the control plane.
//!
//! Of the gate roots of one VM (two listeners, an old and a new configuration) one drives: the newest. Ticks are the only
//! place where a policy is compiled or a stream opened; requests never wait for either.

mod policy;
mod standing;

use prost::Message;

use sluicegate_core::exchange::{Awaited, Mono};
use sluicegate_core::plugin::{PluginConfig, Role};
use sluicegate_core::proto::dataplane::{self as wire, SyncDown, SyncUp, sync_down, sync_up};
use sluicegate_core::state::session::Identity;
use sluicegate_core::state::subscriber::{Candidate, Held};
use sluicegate_core::state::{Boot, Effect, Head, Session, Stamp, StoreFault, Times, seat};

use crate::fault::{self, Place};
use crate::host::{self, Buffer, LogLevel};
use crate::link::Link;
use crate::store::HostStore;
use crate::vm::Shared;
use policy::InForce;
use standing::{envoy_version, node, standing_up};

/// The tick while nothing is queued. All that has to happen in time hangs on it: deadlines of waiting requests, take-over,
/// a new policy.
pub const TICK_MS: u32 = 100;
const STANDING_NS: u64 = 5_000_000_000;
const METRICS_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub struct Root {
    vm: u64,
    /// The root that drives, and the version of its configuration.
    driver: Option<(u32, u64)>,
    /// What the streams now open hang on: the root that opened them.
    works: Option<u32>,
    candidate: Option<Candidate>,
    held: Option<Held>,
    sync: Link,
    session: Session,
    boot: Option<Boot>,
    seat: Option<u32>,
    beat_at: u64,
    /// The policy that the seat tells of.
    told: Stamp,
    standing_at: u64,
    /// The oldest policy any VM works by, as it was last reported.
    reported: Stamp,
    metrics_at: u64,
    policy: InForce,
}

impl Root {
    pub fn new(vm: u64) -> Self {
        Self {
            vm,
            driver: None,
            works: None,
            candidate: None,
            held: None,
            sync: Link::new("Sync"),
            session: Session::default(),
            boot: None,
            seat: None,
            beat_at: 0,
            told: Stamp::ZERO,
            standing_at: 0,
            reported: Stamp::ZERO,
            metrics_at: 0,
            policy: InForce::default(),
        }
    }

    /// A gate root was configured: it drives if its configuration is as new as the one that does.
    pub fn announce(&mut self, context: u32, version: u64) {
        if self.driver.is_none_or(|(_, driving)| driving <= version) {
            self.driver = Some((context, version));
        }
    }

    pub fn tick(&mut self, context: u32, config: &PluginConfig, shared: &mut Shared) {
        if config.role != Role::Gate {
            return;
        }
        fault::at(Place::Tick);
        let now = Times { mono: host::now().0, wall: host::wall_clock() };
        if self.works.is_some_and(|w| w == context) && self.driver.is_some_and(|(d, _)| d != context) {
            // A newer root drives: it opens streams of its own.
            self.stop(now.mono, shared);
            return;
        }
        match self.driver {
            None => self.announce(context, config.version),
            Some((driver, _)) if driver != context => return,
            Some(_) => {}
        }
        if self.works.is_none() {
            self.works = Some(context);
            self.candidate = Some(Candidate::new(host::random(), config.version));
        }
        if let Err(fault) = self.work(context, config, now, shared) {
            host::log(LogLevel::Warn, &format!("sluicegate: shared data: {fault}"));
        }
    }

    fn work(&mut self, context: u32, config: &PluginConfig, now: Times, shared: &mut Shared) -> Result<(), StoreFault> {
        self.subscribe(config, now, shared)?;
        let Some(boot) = self.boot(shared)? else { return Ok(()) };
        let head = Head::read(&HostStore)?;
        shared.clock = head.clock;
        shared.credentials.refresh(&head);
        self.policy.load(&head, shared)?;
        shared.flow.buckets = boot.sizes.map_or(0, |sizes| sizes.buckets);
        if let Some(sizes) = boot.sizes
            && self.beat_is_due(now)
        {
            self.beat_at = now.mono;
            self.told = self.policy.stamp();
            self.seat = seat::beat(&HostStore, sizes.seats, self.seat, self.vm, self.standing(shared), now.mono)?;
        }
        let hello = || wire::FlowHello { node: node(), boot: boot.id, vm: self.vm };
        shared.flow.tick(context, &config.cluster, hello, now.mono);
        if self.held.is_some() && self.report_is_due(&head, now)? {
            self.report(now, shared)?;
        }
        if now.mono.saturating_sub(self.metrics_at) >= METRICS_NS {
            self.metrics_at = now.mono;
            shared.metrics.flush(&head, self.held.is_some() && self.sync.is_open());
        }
        Ok(())
    }

    /// Holds a Sync stream while this VM is a subscriber.
    fn subscribe(&mut self, config: &PluginConfig, now: Times, shared: &mut Shared) -> Result<(), StoreFault> {
        let Some(candidate) = &mut self.candidate else { return Ok(()) };
        let held = candidate.tick(&HostStore, now.mono)?;
        if held != self.held {
            self.sync.close(now.mono);
            self.held = held;
        }
        let Some(held) = held else { return Ok(()) };
        let boot = Boot::read_or_create(&HostStore, host::random())?;
        shared.boot = boot.id;
        if !self.sync.open(&config.cluster, now.mono) {
            return Ok(());
        }
        self.session = Session::default();
        let (node, envoy_version) = (node(), envoy_version());
        let identity =
            Identity { node: &node, filter_version: env!("CARGO_PKG_VERSION"), envoy_version: &envoy_version };
        let standing = standing_up(&self.seats(now)?, now, shared)?;
        let hello = Session::hello(&HostStore, &boot, held, identity, standing)?;
        self.send(sync_up::M::Hello(hello), now.mono);
        Ok(())
    }

    /// The process's boot, read until its sizes are fixed.
    fn boot(&mut self, shared: &mut Shared) -> Result<Option<Boot>, StoreFault> {
        if self.boot.is_none_or(|b| b.sizes.is_none()) {
            self.boot = Boot::read(&HostStore)?;
        }
        if let Some(boot) = self.boot {
            shared.boot = boot.id;
        }
        Ok(self.boot)
    }

    pub fn message(&mut self, token: u32, size: usize, shared: &mut Shared) {
        fault::at(Place::GrpcMessage);
        let now = Times { mono: host::now().0, wall: host::wall_clock() };
        let bytes = host::buffer(Buffer::GrpcMessage, 0, size).unwrap_or_default();
        if shared.flow.owns(token) {
            if let Some(resolved) = shared.flow.message(&bytes) {
                self.resolved(resolved, now, shared);
            }
        } else if self.sync.owns(token) {
            match SyncDown::decode(bytes.as_slice()) {
                Ok(message) => self.apply(message, now, shared),
                Err(_) => self.reopen("a message is not readable", now.mono),
            }
        }
    }

    /// Who somebody is: those who waited for it look again.
    fn resolved(&mut self, resolved: wire::Resolved, now: Times, shared: &mut Shared) {
        let Some(outcome) = resolved.outcome else { return };
        let Some(hash) = shared.flow.asks.answered(&resolved.hash, &outcome, Mono(now.mono)) else { return };
        if let wire::resolved::Outcome::Found(found) = outcome
            && let Some(sizes) = self.boot.and_then(|b| b.sizes)
            && let Err(fault) = Session::apply_found(&HostStore, sizes, found)
        {
            host::log(LogLevel::Warn, &format!("sluicegate: shared data: {fault}"));
        }
        shared.waiting.arrived(Awaited::Identity(hash));
    }

    fn apply(&mut self, message: SyncDown, now: Times, shared: &mut Shared) {
        let sizes = self.boot.and_then(|b| b.sizes);
        if let Some(sync_down::M::Welcome(_)) = message.m {
            self.sync.works();
            self.boot = None;
        }
        match self.session.apply(&HostStore, sizes, message, now) {
            Ok(None) => {}
            Ok(Some(Effect::Reopen { reason })) => self.reopen(reason, now.mono),
            Ok(Some(Effect::Policy { stamp, snapshot })) => self.judge(stamp, &snapshot, now, shared),
            Ok(Some(Effect::Complete)) => self.standing_at = 0,
            Err(fault) => {
                host::log(LogLevel::Warn, &format!("sluicegate: shared data: {fault}"));
                self.reopen("a message could not be applied", now.mono);
            }
        }
        if self.boot.is_none() {
            self.boot = Boot::read(&HostStore).ok().flatten();
        }
    }

    fn judge(&mut self, stamp: Stamp, snapshot: &[u8], now: Times, shared: &mut Shared) {
        match self.policy.judge(stamp, snapshot, shared) {
            Ok(verdict) => self.send(sync_up::M::Verdict(verdict), now.mono),
            Err(_) => self.reopen("a policy could not be stored", now.mono),
        }
    }

    pub fn closed(&mut self, token: u32, status: u32, shared: &mut Shared) {
        let now = host::now().0;
        if self.sync.owns(token) {
            self.sync.closed(now);
            host::log(LogLevel::Info, &format!("sluicegate: Sync stream closed with gRPC status {status}"));
        } else if shared.flow.owns(token) {
            shared.flow.closed(now);
        }
    }

    /// A root ends: if it is the one that works, what it holds is free for others at once.
    pub fn leave(&mut self, context: u32, shared: &mut Shared) {
        if self.works == Some(context) {
            self.stop(host::now().0, shared);
        }
        if self.driver.is_some_and(|(d, _)| d == context) {
            self.driver = None;
        }
    }

    fn stop(&mut self, now: u64, shared: &mut Shared) {
        self.works = None;
        if let Some(mut candidate) = self.candidate.take() {
            let _ = candidate.release(&HostStore);
        }
        if let Some(seat) = self.seat.take() {
            let _ = seat::leave(&HostStore, seat, self.vm);
            self.beat_at = 0;
        }
        self.held = None;
        self.sync.close(now);
        shared.flow.close(now);
    }

    fn reopen(&mut self, reason: &str, now: u64) {
        host::log(LogLevel::Info, &format!("sluicegate: Sync stream is opened again: {reason}"));
        self.sync.close(now);
    }

    /// Now and then, and at once with a new policy: admins wait for it to be in force.
    fn beat_is_due(&self, now: Times) -> bool {
        self.told < self.policy.stamp() || now.mono.saturating_sub(self.beat_at) >= seat::BEAT_NS
    }

    /// Now and then, and whenever the last VM has come as far as a policy: admins wait for that.
    fn report_is_due(&self, head: &Head, now: Times) -> Result<bool, StoreFault> {
        if now.mono.saturating_sub(self.standing_at) >= STANDING_NS {
            return Ok(true);
        }
        Ok(self.reported < head.policy && self.seats(now)?.policy > self.reported)
    }

    fn report(&mut self, now: Times, shared: &Shared) -> Result<(), StoreFault> {
        self.standing_at = now.mono;
        let seats = self.seats(now)?;
        self.reported = seats.policy;
        let standing = standing_up(&seats, now, shared)?;
        self.send(sync_up::M::Standing(standing), now.mono);
        Ok(())
    }

    fn send(&mut self, message: sync_up::M, now: u64) {
        if self.sync.is_open() && !self.sync.send(&SyncUp { m: Some(message) }.encode_to_vec()) {
            self.sync.close(now);
        }
    }

    fn standing(&self, shared: &Shared) -> seat::Standing {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        seat::Standing {
            policy: self.policy.stamp(),
            requests_in_flight: count(shared.exchanges.len()),
            records_waiting: count(shared.flow.waiting()),
            records_dropped: shared.flow.dropped(),
        }
    }

    /// All VMs of this Envoy together.
    fn seats(&self, now: Times) -> Result<seat::Summary, StoreFault> {
        match self.boot.and_then(|b| b.sizes) {
            Some(sizes) => seat::summary(&HostStore, sizes.seats, now.mono),
            None => Ok(seat::Summary::default()),
        }
    }
}
