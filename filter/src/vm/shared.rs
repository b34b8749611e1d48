//! What all streams of one VM work with.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use sluicegate_core::exchange::credential::KeyHash;
use sluicegate_core::exchange::log::Origin;
use sluicegate_core::exchange::{Exchange, Mono, Ticket};
use sluicegate_core::policy::{Limits, Policy};
use sluicegate_core::state::{Boot, Head, Lookup, Reader, Stamp, Times};

use crate::credentials::Credentials;
use crate::flow::Flow;
use crate::host;
use crate::metrics::Metrics;
use crate::store::HostStore;

/// How long a request waits for the policy of a VM that has just begun.
const POLICY_WAIT_NS: u64 = 1_000_000_000;
/// Refusals without an owner that are booked each second; the others are only counted.
const STRANGERS_PER_SECOND: u32 = 10;

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

impl Shared {
    /// `vm` is random, one per VM incarnation.
    pub fn new(vm: u64) -> Self {
        Self {
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
        }
    }

    /// A new request's.
    pub fn ticket(&mut self, started: Mono) -> Ticket {
        Ticket::new(self.vm, self.next_seq(), started)
    }

    /// Numbers the records of this VM.
    pub fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// `None` in a process that has no boot yet: a record without it would be another one than that which Flow brings.
    pub fn origin(&mut self, context: u32) -> Option<Origin> {
        if self.boot == 0 {
            // A fresh VM before its first tick.
            self.boot = Boot::read(&HostStore).ok()??.id;
        }
        Some(Origin { boot: self.boot, vm: self.vm, context })
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

    /// Whether this Envoy has had its whole state once: it stays ready through outages, and through traps, because a fresh
    /// VM makes requests wait until it has compiled the policy that is there.
    pub fn is_ready(&mut self) -> bool {
        if !self.ready {
            self.ready = Head::read(&HostStore).is_ok_and(|head| head.complete && head.policy > Stamp::ZERO);
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
