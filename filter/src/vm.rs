//! The state of one VM: its roots, its streams, and what they share.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use sluicegate_core::exchange::credential::KeyHash;
use sluicegate_core::exchange::log::Origin;
use sluicegate_core::exchange::{Exchange, Mono, Ticket};
use sluicegate_core::plugin::{PluginConfig, Role};
use sluicegate_core::policy::{Limits, Policy};
use sluicegate_core::state::{Head, Lookup, Reader, Times};

use crate::adapter::Adapter;
use crate::credentials::Credentials;
use crate::flow::Flow;
use crate::gate::Gate;
use crate::host::{self, Buffer, LogLevel};
use crate::metrics::Metrics;
use crate::root::{Root, TICK_MS};
use crate::store::HostStore;

/// What a stream callback answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Action {
    Continue = 0,
    Pause = 1,
}

/// How long a request waits for the policy of a VM that has just begun.
const POLICY_WAIT_NS: u64 = 1_000_000_000;
/// Refusals without an owner that are booked each second; the others are only counted.
const STRANGERS_PER_SECOND: u32 = 10;

#[derive(Debug)]
pub struct Vm {
    roots: HashMap<u32, Plugin>,
    streams: HashMap<u32, Stream>,
    root: Root,
    shared: Shared,
}

/// A root context: one filter entry of Envoy's configuration.
#[derive(Debug)]
enum Plugin {
    Unconfigured,
    Configured(PluginConfig),
}

#[derive(Debug)]
enum Stream {
    Gate(Gate),
    Adapter(Adapter),
}

/// What all streams of this VM work with.
#[derive(Debug)]
pub struct Shared {
    /// Random, one per VM incarnation.
    pub vm: u64,
    pub policy: Option<Rc<Policy>>,
    /// Admitted requests by their gate's context id.
    pub exchanges: HashMap<u32, Exchange>,
    pub credentials: Credentials,
    pub flow: Flow,
    pub metrics: Metrics,
    /// Requests that wait for a policy, with their deadlines.
    pub parked: VecDeque<(u32, u64)>,
    /// Control-plane time minus the monotonic clock, ns.
    pub clock: i64,
    /// Of the process; 0 until it is known.
    pub boot: u64,
    /// Seen complete in this boot once; stays so.
    ready: bool,
    reader: Reader,
    seq: u64,
    random: u64,
    strangers: (u64, u32),
}

impl Default for Vm {
    fn default() -> Self {
        let vm = host::random();
        let shared = Shared {
            vm,
            policy: None,
            exchanges: HashMap::new(),
            credentials: Credentials::new(),
            flow: Flow::new(vm),
            metrics: Metrics::default(),
            parked: VecDeque::new(),
            clock: 0,
            boot: 0,
            ready: false,
            reader: Reader::default(),
            seq: 0,
            random: host::random(),
            strangers: (0, 0),
        };
        Self { roots: HashMap::new(), streams: HashMap::new(), root: Root::new(vm), shared }
    }
}

impl Vm {
    pub fn create_context(&mut self, context: u32, root: u32) {
        if root == 0 {
            self.roots.insert(context, Plugin::Unconfigured);
            return;
        }
        let stream = match self.roots.get(&root) {
            Some(Plugin::Configured(PluginConfig { role: Role::Adapter, .. })) => Stream::Adapter(Adapter::default()),
            // A stream whose root is unknown is a gate's: it lets nothing through without a policy.
            _ => Stream::Gate(Gate::default()),
        };
        self.streams.insert(context, stream);
    }

    /// Runs in a throw-away VM first: so nothing here touches shared data or opens a stream.
    pub fn configure(&mut self, context: u32, size: usize) -> bool {
        let bytes = host::buffer(Buffer::PluginConfiguration, 0, size).unwrap_or_default();
        let config = match PluginConfig::parse(&bytes) {
            Ok(config) => config,
            Err(reason) => {
                host::log(LogLevel::Error, &format!("sluicegate: plugin configuration: {reason}"));
                return false;
            }
        };
        if config.role == Role::Gate {
            self.root.announce(context, config.version);
            // A refused tick leaves the filter without state: it would answer 503 for ever, so it is refused here.
            if host::set_tick_period(TICK_MS).is_err() {
                return false;
            }
        }
        self.roots.insert(context, Plugin::Configured(config));
        true
    }

    pub fn tick(&mut self, context: u32) {
        #[cfg(feature = "count")]
        crate::count::tally::publish("streams");
        if let Some(Plugin::Configured(config)) = self.roots.get(&context) {
            self.root.tick(context, config, &mut self.shared);
        }
        self.unpark(context);
        #[cfg(feature = "count")]
        crate::count::tally::publish("ticks");
    }

    /// Resumes what waits for a policy: at most 32 in one callback, because more overflow the VM's stack, and each once.
    fn unpark(&mut self, root: u32) {
        const AT_ONCE: usize = 32;
        let now = host::now().0;
        for _ in 0..AT_ONCE {
            let due = self.shared.parked.front().is_some_and(|(_, by)| self.shared.policy.is_some() || *by <= now);
            let Some((context, _)) = due.then(|| self.shared.parked.pop_front()).flatten() else { break };
            let Some(Stream::Gate(gate)) = self.streams.get_mut(&context) else { continue };
            // A client that has left took its context with it; then the old one is still effective.
            if host::set_effective_context(context).is_err() {
                continue;
            }
            if gate.unpark(context, &mut self.shared) {
                let _ = host::continue_request();
            }
            let _ = host::set_effective_context(root);
        }
    }

    pub fn request_headers(&mut self, context: u32, end: bool) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Gate(gate)) => gate.request_headers(end, &mut self.shared),
            Some(Stream::Adapter(adapter)) => adapter.request_headers(&mut self.shared),
            None => Action::Pause,
        }
    }

    pub fn request_body(&mut self, context: u32, size: usize, end: bool) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Gate(gate)) => gate.request_body(context, size, end, &mut self.shared),
            Some(Stream::Adapter(adapter)) => adapter.request_body(size, end, &mut self.shared),
            None => Action::Pause,
        }
    }

    pub fn request_trailers(&mut self, context: u32) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Gate(gate)) => gate.request_trailers(context, &mut self.shared),
            Some(Stream::Adapter(adapter)) => adapter.request_trailers(&mut self.shared),
            None => Action::Pause,
        }
    }

    pub fn response_headers(&mut self, context: u32, end: bool) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Gate(gate)) => gate.response_headers(context, &mut self.shared),
            Some(Stream::Adapter(adapter)) => adapter.response_headers(end, &mut self.shared),
            None => Action::Continue,
        }
    }

    pub fn response_body(&mut self, context: u32, size: usize, end: bool) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Adapter(adapter)) => adapter.response_body(size, end, &mut self.shared),
            Some(Stream::Gate(_)) | None => Action::Continue,
        }
    }

    pub fn response_trailers(&mut self, context: u32) -> Action {
        match self.streams.get_mut(&context) {
            Some(Stream::Adapter(adapter)) => adapter.response_trailers(&mut self.shared),
            Some(Stream::Gate(_)) | None => Action::Continue,
        }
    }

    pub fn done(&mut self, context: u32) {
        match self.streams.get(&context) {
            Some(Stream::Adapter(adapter)) => adapter.done(&mut self.shared),
            Some(Stream::Gate(_)) => {}
            None if self.roots.contains_key(&context) => self.root.leave(context, &mut self.shared),
            None => {}
        }
    }

    pub fn log(&mut self, context: u32) {
        if let Some(Stream::Gate(gate)) = self.streams.get_mut(&context) {
            gate.log(context, &mut self.shared);
        }
    }

    /// Upstream filters get no `on_log`: this is where an adapter's state goes.
    pub fn delete(&mut self, context: u32) {
        self.streams.remove(&context);
        self.roots.remove(&context);
        self.shared.exchanges.remove(&context);
    }

    pub fn grpc_message(&mut self, token: u32, size: usize) {
        self.root.message(token, size, &mut self.shared);
    }

    pub fn grpc_closed(&mut self, token: u32, status: u32) {
        self.root.closed(token, status, &mut self.shared);
    }
}

impl Shared {
    /// A new request's.
    pub fn ticket(&mut self, started: Mono) -> Ticket {
        Ticket::new(self.vm, self.next_seq(), started)
    }

    /// Numbers the records of this VM.
    pub fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    pub fn origin(&self, context: u32) -> Origin {
        Origin { boot: self.boot, vm: self.vm, context }
    }

    pub fn lookup(&mut self, key: &KeyHash, now: Mono) -> Lookup {
        let now = Times { mono: now.0, wall: host::wall_clock() };
        let staleness = self.limits().max_staleness_ms.saturating_mul(1_000_000);
        // A store that cannot be read is a state that is not there.
        self.reader.lookup(&HostStore, &key.0, now, staleness).unwrap_or(Lookup::NotReady)
    }

    pub fn max_body_bytes(&self) -> u64 {
        self.limits().max_body_bytes
    }

    fn limits(&self) -> Limits {
        self.policy.as_ref().map(|p| p.limits).unwrap_or_default()
    }

    /// ns since 1970, as the control plane counts them.
    pub fn control_plane_time(&self, now: Mono) -> i64 {
        match self.clock {
            0 => i64::try_from(host::wall_clock()).unwrap_or(i64::MAX),
            clock => i64::try_from(now.0).unwrap_or(i64::MAX).saturating_add(clock),
        }
    }

    /// Whether this Envoy has had its whole state once: it stays ready through outages.
    pub fn is_ready(&mut self) -> bool {
        if !self.ready && self.policy.is_some() {
            self.ready = Head::read(&HostStore).is_ok_and(|head| head.complete);
        }
        self.ready
    }

    pub fn park(&mut self, context: u32) {
        self.parked.push_back((context, host::now().0.saturating_add(POLICY_WAIT_NS)));
    }

    /// Uniform over `u64`; splitmix64, seeded by the host's randomness. Draws lists, keeps no secret.
    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Whether one more refusal without an owner is booked.
    pub fn may_book_stranger(&mut self, now: Mono) -> bool {
        let second = now.0 / 1_000_000_000;
        if self.strangers.0 != second {
            self.strangers = (second, 0);
        }
        self.strangers.1 += 1;
        self.strangers.1 <= STRANGERS_PER_SECOND
    }
}
