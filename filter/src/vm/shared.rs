//! What all streams of one VM work with.

use std::collections::HashMap;
use std::rc::Rc;

use sluicegate_core::exchange::credential::KeyHash;
use sluicegate_core::exchange::log::Origin;
use sluicegate_core::exchange::{Awaited, Exchange, Mono, Ticket, Waiting};
use sluicegate_core::policy::{Limits, Policy};
use sluicegate_core::refusal::Refusal;
use sluicegate_core::state::{Head, Lookup, Reader, Stamp, Times};

use crate::credentials::Credentials;
use crate::decodings::Decodings;
use crate::flow::Flow;
use crate::host::{self, LogLevel};
use crate::metrics::Metrics;
use crate::store::HostStore;
use crate::vm::Pauses;

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
    /// Requests that wait for a policy, or for who asks.
    pub waiting: Waiting,
    pub decodings: Decodings,
    /// Control-plane time minus the monotonic clock, ns.
    pub clock: i64,
    /// Of the process; 0 until it is known.
    pub boot: u64,
    /// A gate was configured in this VM; where not, the adapter is alone in it.
    pub has_gate: bool,
    pub gate_pauses: Pauses,
    pub adapter_pauses: Pauses,
    /// Seen complete in this boot once; stays so.
    ready: bool,
    reader: Reader,
    seq: u64,
    random: u64,
    strangers: (u64, u32),
    /// When it was last said in Envoy's log that it is misconfigured, in seconds.
    complained: u64,
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
            waiting: Waiting::default(),
            decodings: Decodings::default(),
            clock: 0,
            boot: 0,
            has_gate: false,
            gate_pauses: Pauses::of_gates(),
            adapter_pauses: Pauses::of_adapters(),
            ready: false,
            reader: Reader::default(),
            seq: 0,
            random: host::random(),
            strangers: (0, 0),
            complained: 0,
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

    /// Whether this Envoy has had its whole state once: it stays ready through outages, and through traps, because a fresh
    /// VM makes requests wait until it has compiled the policy that is there.
    pub fn is_ready(&mut self) -> bool {
        if !self.ready {
            self.ready = Head::read(&HostStore).is_ok_and(|head| head.complete && head.policy > Stamp::ZERO);
        }
        self.ready
    }

    /// From now on requests are decided by this one.
    pub fn install(&mut self, policy: Policy) {
        self.policy = Some(Rc::new(policy));
        self.waiting.arrived(Awaited::Policy);
    }

    /// Uniform over `u64`; splitmix64, seeded by the host's randomness. Draws lists, keeps no secret.
    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A client got a refusal. One that an administrator has to see is said in Envoy's log too, once a second.
    pub fn refused(&mut self, refusal: &Refusal) {
        self.metrics.refused(refusal);
        let Refusal::Misconfigured { option } = refusal else { return };
        let second = host::now().0 / 1_000_000_000;
        if self.complained != second {
            self.complained = second;
            let code = refusal.code();
            host::log(LogLevel::Error, &format!("sluicegate: {code}: Envoy is configured without {option}"));
        }
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
