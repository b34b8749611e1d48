//! Finds out whether a stream that is paused at its headers gets its body.
//!
//! Without `allow_on_headers_stop_iteration` Envoy takes such a pause to mean the body too and keeps it to itself: the
//! request would hang. Nothing in the ABI tells that option, but Envoy counts what it has received (`request.total_size`).
//! Bytes that it counts and does not bring are a body that is kept back; a client that has sent nothing yet is told apart
//! by that. One body callback on a paused stream proves the option, and the watch is over.
//!
//! A filter before the gate that holds bodies back looks the same while it does, hence the [`PATIENCE_NS`].

use std::collections::VecDeque;

use sluicegate_core::refusal::Refusal;

use super::{Shared, Stream, Vm};
use crate::host::{self, Map};
use crate::reply::LocalReply;

/// How long received bytes may stay away; with a tick before and after it is half a second at most.
const PATIENCE_NS: u64 = 300_000_000;
/// A client that sends no byte of its body may be one whose empty body is kept back: nothing tells. As long as the routes
/// of a managed Envoy wait.
const SILENCE_NS: u64 = 5_000_000_000;
/// How long it is taken as known that the option is missing.
const MEMORY_NS: u64 = 1_000_000_000;
/// Streams that are looked at, and those of them that are answered, in one tick: answers nest on the VM's stack.
const LOOKS: usize = 256;
const ANSWERS: usize = 32;

/// What is known of the option of one entry, gate or adapter, in this VM.
#[derive(Debug)]
pub struct Pauses {
    option: &'static str,
    proven: bool,
    missing_at: Option<u64>,
    /// Paused streams, by their gate's context id.
    waiting: VecDeque<Paused>,
}

#[derive(Clone, Copy, Debug)]
struct Paused {
    gate: u32,
    since: u64,
    /// When it was first seen that bytes were kept back.
    kept_back: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Wait,
    Silent,
    Missing,
}

impl Pauses {
    pub fn of_gates() -> Self {
        Self::new("allow_on_headers_stop_iteration in the gate's entry")
    }

    pub fn of_adapters() -> Self {
        Self::new("allow_on_headers_stop_iteration in the adapter's entry")
    }

    fn new(option: &'static str) -> Self {
        Self { option, proven: false, missing_at: None, waiting: VecDeque::new() }
    }

    pub fn proven(&self) -> bool {
        self.proven
    }

    /// A stream is paused at its headers.
    pub fn begin(&mut self, gate: u32) {
        if !self.proven {
            self.waiting.push_back(Paused { gate, since: host::now().0, kept_back: None });
        }
    }

    /// A body came to a stream that is paused at its headers.
    pub fn works(&mut self) {
        if !self.proven {
            *self = Self { proven: true, ..Self::new(self.option) };
        }
    }

    /// The option is known to be missing: a further stream need not wait to find out. One a second does.
    pub fn missing(&self, now: u64) -> Option<Refusal> {
        let known = |at| !self.waiting.is_empty() || now.saturating_sub(at) < MEMORY_NS;
        self.missing_at.is_some_and(known).then_some(Refusal::Misconfigured { option: self.option })
    }

    fn found_missing(&mut self, now: u64) -> Refusal {
        self.missing_at = Some(now);
        Refusal::Misconfigured { option: self.option }
    }
}

impl Paused {
    fn judge(&mut self, received: bool, now: u64) -> Verdict {
        match self.kept_back {
            Some(at) if now.saturating_sub(at) >= PATIENCE_NS => Verdict::Missing,
            Some(_) => Verdict::Wait,
            None if received => {
                self.kept_back = Some(now);
                Verdict::Wait
            }
            None if now.saturating_sub(self.since) >= SILENCE_NS => Verdict::Silent,
            None => Verdict::Wait,
        }
    }
}

impl Vm {
    /// On a tick of `root`.
    pub(super) fn watch(&mut self, root: u32) {
        let now = host::now().0;
        let mut answers = 0;
        for _ in 0..self.shared.gate_pauses.waiting.len().min(LOOKS) {
            let Some(paused) = self.shared.gate_pauses.waiting.pop_front() else { break };
            answers += usize::from(self.look_at_gate(paused, now));
            if answers == ANSWERS {
                break;
            }
        }
        for _ in 0..self.shared.adapter_pauses.waiting.len().min(LOOKS) {
            let Some(paused) = self.shared.adapter_pauses.waiting.pop_front() else { break };
            answers += usize::from(look_at_attempt(&mut self.shared, paused, now));
            if answers >= ANSWERS {
                break;
            }
        }
        let _ = host::set_effective_context(root);
    }

    /// Whether it was answered.
    fn look_at_gate(&mut self, mut paused: Paused, now: u64) -> bool {
        let Some(Stream::Gate(gate)) = self.streams.get_mut(&paused.gate) else { return false };
        if !gate.is_reading() || host::set_effective_context(paused.gate).is_err() {
            return false;
        }
        let refusal = match paused.judge(received() > 0, now) {
            Verdict::Wait => {
                self.shared.gate_pauses.waiting.push_back(paused);
                return false;
            }
            Verdict::Silent => Refusal::UploadStalled,
            Verdict::Missing => self.shared.gate_pauses.found_missing(now),
        };
        gate.give_up(refusal, &mut self.shared);
        true
    }
}

/// The whole body is there when an attempt begins, so there is no silence to tell apart.
fn look_at_attempt(shared: &mut Shared, mut paused: Paused, now: u64) -> bool {
    let Some(exchange) = shared.exchanges.get_mut(&paused.gate).filter(|e| !e.replied()) else { return false };
    if host::set_effective_context(paused.gate).is_err() {
        return false;
    }
    if paused.judge(true, now) != Verdict::Missing {
        shared.adapter_pauses.waiting.push_back(paused);
        return false;
    }
    let refusal = shared.adapter_pauses.found_missing(now);
    exchange.never_sent(exchange.attempts().saturating_sub(1));
    exchange.refuse(refusal.clone());
    LocalReply::refusal(&refusal, exchange.ticket.operation).send();
    shared.refused(&refusal);
    true
}

/// Bytes that Envoy has received of the body of the effective context's request.
fn received() -> u64 {
    let total = host::property(&["request", "total_size"]).ok().flatten();
    let total = total.and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
    let Ok(headers) = host::headers(Map::RequestHeaders) else { return 0 };
    let headers: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    total.saturating_sub(headers as u64)
}
