//! Usage on its way up: one stream per VM, used from any context.

use prost::Message;

use sluicegate_core::exchange::{Mono, Outbox};
use sluicegate_core::proto::dataplane::{FlowDown, FlowHello, FlowUp, Record, flow_down, flow_up};

use crate::host;
use crate::link::Link;
use crate::root::TICK_MS;

/// Records a VM keeps while no one takes them: at 100 a second, three minutes; at 250 bytes each, 5 MB.
const CAPACITY: usize = 20_000;
/// Batches leave no more often than this: at high rates that saves most of the cost, at low ones nothing waits.
const PACE_NS: u64 = 5_000_000;
const FAST_TICK_MS: u32 = 5;
/// How often it is looked for records whose ack stays away.
const OVERDUE_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub struct Flow {
    link: Link,
    outbox: Outbox,
    /// The root whose stream this is; 0 for none.
    root: u32,
    sent_at: u64,
    looked_at: u64,
    fast: bool,
}

impl Flow {
    pub fn new(vm: u64) -> Self {
        Self {
            link: Link::new("Flow"),
            outbox: Outbox::new(vm, CAPACITY),
            root: 0,
            sent_at: 0,
            looked_at: 0,
            fast: false,
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
            self.hurry();
        }
        let _ = host::set_effective_context(context);
    }

    /// The next tick of the effective root comes soon.
    pub fn hurry(&mut self) {
        if !self.fast {
            self.fast = host::set_tick_period(FAST_TICK_MS).is_ok();
        }
    }

    /// On the root's tick: opens, sends, sends again.
    pub fn tick(&mut self, root: u32, cluster: &str, hello: impl FnOnce() -> FlowHello, now: u64) {
        if self.link.open(cluster, now) {
            self.root = root;
            self.outbox.resend();
            let hello = FlowUp { m: Some(flow_up::M::Hello(hello())) };
            self.link.send(&hello.encode_to_vec());
        }
        if now.saturating_sub(self.looked_at) >= OVERDUE_NS {
            self.looked_at = now;
            self.outbox.resend_overdue(Mono(now));
        }
        self.send(now);
        if self.fast && !self.outbox.has_unsent() {
            self.fast = host::set_tick_period(TICK_MS).is_err();
        }
    }

    pub fn message(&mut self, bytes: &[u8]) {
        if let Ok(FlowDown { m: Some(flow_down::M::Acked(acked)) }) = FlowDown::decode(bytes) {
            self.link.works();
            self.outbox.ack(acked.vm, &acked.ranges);
        }
    }

    pub fn owns(&self, token: u32) -> bool {
        self.link.owns(token)
    }

    pub fn closed(&mut self, now: u64) {
        self.link.closed(now);
        self.outbox.resend();
    }

    pub fn close(&mut self, now: u64) {
        self.link.close(now);
        self.outbox.resend();
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
                self.outbox.resend();
                self.link.close(now);
                return;
            }
            self.sent_at = now;
        }
    }
}
