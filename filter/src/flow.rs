//! Usage on its way up, and questions with their answers: one stream per VM, used from any context.

use prost::Message;

use sluicegate_core::exchange::token::Presented;
use sluicegate_core::exchange::{Asks, Mono, Outbox};
use sluicegate_core::proto::dataplane::{FlowDown, FlowHello, FlowUp, Record, Resolved, flow_down, flow_up};
use sluicegate_core::refusal::Refusal;

use crate::host;
use crate::link::Link;
use crate::root::TICK_MS;

/// Records a VM keeps while no one takes them: at 100 a second, three minutes; at 250 bytes each, 5 MB.
const CAPACITY: usize = 20_000;
/// Batches leave no more often than this: at high rates that saves most of the cost, at low ones nothing waits.
const PACE_NS: u64 = 5_000_000;
const FAST_TICK_MS: u32 = 5;
/// As soon as the worker has seen to its connections.
const NEXT_TICK_MS: u32 = 1;
/// How often it is looked for records whose ack stays away.
const OVERDUE_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub struct Flow {
    link: Link,
    outbox: Outbox,
    pub asks: Asks,
    /// Of the boot; 0 until they are known.
    pub buckets: u32,
    /// The root whose stream this is; 0 for none.
    root: u32,
    sent_at: u64,
    looked_at: u64,
    tick_ms: u32,
}

impl Flow {
    pub fn new(vm: u64) -> Self {
        Self {
            link: Link::new("Flow"),
            outbox: Outbox::new(vm, CAPACITY),
            asks: Asks::default(),
            buckets: 0,
            root: 0,
            sent_at: 0,
            looked_at: 0,
            tick_ms: TICK_MS,
        }
    }

    /// Queues records and sends them at once if nothing went out lately; otherwise a tick soon will. `context` is the
    /// effective one, and is again afterwards.
    pub fn book(&mut self, context: u32, records: Vec<Record>, now: Mono) {
        for record in records {
            self.outbox.push(record);
        }
        if !self.link.is_open() || host::set_effective_context(self.root).is_err() {
            return;
        }
        if now.0.saturating_sub(self.sent_at) >= PACE_NS {
            self.send(now.0);
        } else {
            self.set_tick(self.tick_ms.min(FAST_TICK_MS));
        }
        let _ = host::set_effective_context(context);
    }

    /// Asks for a tick at once. `context` is the effective one, and is again afterwards.
    pub fn hurry(&mut self, context: u32) {
        if host::set_effective_context(self.root).is_ok() {
            self.set_tick(NEXT_TICK_MS);
            let _ = host::set_effective_context(context);
        }
    }

    fn set_tick(&mut self, ms: u32) {
        if ms != self.tick_ms && host::set_tick_period(ms).is_ok() {
            self.tick_ms = ms;
        }
    }

    /// Asks who somebody is, at once. `context` is the effective one, and is again afterwards.
    ///
    /// # Errors
    /// The no of a moment ago, or that nobody can be asked now.
    pub fn ask(&mut self, context: u32, who: &Presented, now: Mono) -> Result<(), Refusal> {
        if let Some(refusal) = self.asks.refusal(&who.hash, now) {
            return Err(refusal);
        }
        if !self.link.is_open() || !self.asks.ask(who, now) || host::set_effective_context(self.root).is_err() {
            return Err(Refusal::NotReady);
        }
        self.send_asks(now.0);
        let _ = host::set_effective_context(context);
        Ok(())
    }

    /// On the root's tick: opens, sends, sends again.
    pub fn tick(&mut self, root: u32, cluster: &str, hello: impl FnOnce() -> FlowHello, now: u64) {
        if self.root != root {
            self.root = root;
            self.tick_ms = TICK_MS;
        }
        if self.link.open(cluster, now) {
            self.resend();
            let hello = FlowUp { m: Some(flow_up::M::Hello(hello())) };
            self.link.send(&hello.encode_to_vec());
            self.send_asks(now);
        }
        if now.saturating_sub(self.looked_at) >= OVERDUE_NS {
            self.looked_at = now;
            self.outbox.resend_overdue(Mono(now));
            self.asks.expire(Mono(now));
        }
        self.send(now);
    }

    /// On a root's callback: its ticks come fast while something is queued here, and one after the other while `more` is to be done.
    pub fn pace(&mut self, root: u32, more: bool) {
        if root != self.root {
            return;
        }
        self.set_tick(match more {
            true => NEXT_TICK_MS,
            false if self.link.is_open() && self.outbox.has_unsent() => FAST_TICK_MS,
            false => TICK_MS,
        });
    }

    /// An answer to a question is returned, to be applied.
    pub fn message(&mut self, bytes: &[u8]) -> Option<Resolved> {
        let message = FlowDown::decode(bytes).ok()?.m?;
        self.link.works();
        match message {
            flow_down::M::Acked(acked) => {
                self.outbox.ack(acked.vm, &acked.ranges);
                None
            }
            flow_down::M::Resolved(resolved) => Some(resolved),
        }
    }

    pub fn owns(&self, token: u32) -> bool {
        self.link.owns(token)
    }

    pub fn closed(&mut self, now: u64) {
        self.link.closed(now);
        self.resend();
    }

    pub fn close(&mut self, now: u64) {
        self.link.close(now);
        self.resend();
    }

    fn resend(&mut self) {
        self.outbox.resend();
        self.asks.resend();
    }

    pub fn waiting(&self) -> usize {
        self.outbox.len()
    }

    pub fn dropped(&self) -> u64 {
        self.outbox.dropped()
    }

    fn send(&mut self, now: u64) {
        while self.link.is_open() {
            let Some(batch) = self.outbox.next_batch(Mono(now)) else { return };
            if !self.link.send(&batch) {
                return self.close(now);
            }
            self.sent_at = now;
        }
    }

    fn send_asks(&mut self, now: u64) {
        while self.link.is_open() {
            let Some(question) = self.asks.next_unsent(self.buckets) else { return };
            if !self.link.send(&FlowUp { m: Some(flow_up::M::Resolve(question)) }.encode_to_vec()) {
                return self.close(now);
            }
        }
    }
}
