//! Usage records on their way to the control plane: kept until acked, resent after a break, bounded.

use std::collections::BTreeMap;

use prost::Message;

use super::Mono;
use crate::proto::dataplane::{FlowUp, Record, Records, flow_up};

/// Messages stay under the wire's 64 KB with room for their frame.
const MAX_BATCH_BYTES: usize = 60_000;
/// Of one record in a message: its tag and its length.
const FRAME_BYTES: usize = 4;

/// An ack that stays away so long, in ns, is taken for lost, or the commit for failed.
const ACK_WAIT_NS: u64 = 10_000_000_000;

/// The unacked records of one VM. Each step costs what it touches, not what waits: a control plane that lags behind, or is
/// gone, must not make every request dearer.
#[derive(Debug)]
pub struct Outbox {
    vm: u64,
    capacity: usize,
    /// By `seq`, as `sent` is. What is lost when there is no room is the oldest of both.
    unsent: BTreeMap<u64, Record>,
    /// On its way on the present stream.
    sent: BTreeMap<u64, Sent>,
    dropped: u64,
}

#[derive(Debug)]
struct Sent {
    at: Mono,
    record: Record,
}

impl Outbox {
    /// For the VM incarnation `vm`, keeping at most `capacity` records.
    pub fn new(vm: u64, capacity: usize) -> Self {
        Self { vm, capacity, unsent: BTreeMap::new(), sent: BTreeMap::new(), dropped: 0 }
    }

    /// Queues a record. When full the oldest goes (it is in the access log too) and is counted.
    pub fn push(&mut self, record: Record) {
        if self.len() >= self.capacity {
            self.drop_oldest();
        }
        self.unsent.insert(record.seq, record);
    }

    /// The next message to send, a `FlowUp`, or nothing when all that is queued is on its way.
    pub fn next_batch(&mut self, now: Mono) -> Option<Vec<u8>> {
        let mut size = 0;
        let mut records = Vec::new();
        while let Some(next) = self.unsent.first_entry() {
            size += next.get().encoded_len() + FRAME_BYTES;
            if !records.is_empty() && size > MAX_BATCH_BYTES {
                break;
            }
            records.push(next.remove());
        }
        if records.is_empty() {
            return None;
        }
        let batch = Records { vm: self.vm, records };
        let message = FlowUp { m: Some(flow_up::M::Records(batch)) };
        let bytes = message.encode_to_vec();
        if let Some(flow_up::M::Records(batch)) = message.m {
            self.sent.extend(batch.records.into_iter().map(|record| (record.seq, Sent { at: now, record })));
        }
        Some(bytes)
    }

    /// Forgets what the control plane has committed. `ranges` is first, length, first, length ..; an ack for another
    /// incarnation is ignored, and so is a seq that is not here.
    pub fn ack(&mut self, vm: u64, ranges: &[u64]) {
        if vm != self.vm {
            return;
        }
        for [first, length] in ranges.as_chunks::<2>().0 {
            let acked = *first..first.saturating_add(*length);
            self.sent.extract_if(acked.clone(), |_, _| true).for_each(drop);
            self.unsent.extract_if(acked, |_, _| true).for_each(drop);
        }
    }

    /// The stream broke: everything unacked is to be sent again.
    pub fn resend(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        self.unsent.extend(sent.into_iter().map(|(seq, sent)| (seq, sent.record)));
    }

    /// What was not acked in time is to be sent again, each for itself: others may well be acked meanwhile. Now and then.
    pub fn resend_overdue(&mut self, now: Mono) {
        let overdue = self.sent.extract_if(.., |_, sent| now.0.saturating_sub(sent.at.0) >= ACK_WAIT_NS);
        self.unsent.extend(overdue.map(|(seq, sent)| (seq, sent.record)));
    }

    /// Records not acked yet.
    pub fn len(&self) -> usize {
        self.unsent.len() + self.sent.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a call of [`Self::next_batch`] would find something.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Records lost to the capacity since the VM began.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn drop_oldest(&mut self) {
        let in_sent = match (self.sent.first_key_value(), self.unsent.first_key_value()) {
            (Some((sent, _)), Some((unsent, _))) => sent < unsent,
            (sent, _) => sent.is_some(),
        };
        let lost = if in_sent { self.sent.pop_first().is_some() } else { self.unsent.pop_first().is_some() };
        self.dropped += u64::from(lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn record(seq: u64) -> Record {
        Record { seq, requested_model: "m".repeat(100), ..Default::default() }
    }

    fn seqs(batch: Option<Vec<u8>>) -> Vec<u64> {
        match batch.map(|bytes| FlowUp::decode(bytes.as_slice()).unwrap()) {
            Some(FlowUp { m: Some(flow_up::M::Records(r)) }) => r.records.iter().map(|r| r.seq).collect(),
            _ => vec![],
        }
    }

    #[test]
    fn a_batch_stays_under_its_size() {
        let mut outbox = Outbox::new(1, 10_000);
        (0..2_000).for_each(|seq| outbox.push(record(seq)));
        let mut seen = 0;
        while let Some(batch) = outbox.next_batch(Mono(1)) {
            assert!(batch.len() < 64_000);
            seen += seqs(Some(batch)).len();
        }
        assert_eq!(seen, 2_000);
        assert_eq!(outbox.len(), 2_000);
    }

    #[test]
    fn the_oldest_makes_room_and_is_counted() {
        let mut outbox = Outbox::new(1, 3);
        (0..3).for_each(|seq| outbox.push(record(seq)));
        assert_eq!(seqs(outbox.next_batch(Mono(1))), [0, 1, 2]);
        outbox.push(record(3));
        assert_eq!((outbox.len(), outbox.dropped()), (3, 1));
        assert_eq!(seqs(outbox.next_batch(Mono(1))), [3]);
    }

    #[test]
    fn one_that_is_not_acked_goes_again_while_others_are() {
        let mut outbox = Outbox::new(1, 10);
        outbox.push(record(0));
        assert_eq!(seqs(outbox.next_batch(Mono(0))), [0]);
        outbox.push(record(1));
        assert_eq!(seqs(outbox.next_batch(Mono(ACK_WAIT_NS / 2))), [1]);
        outbox.ack(1, &[1, 1]);
        outbox.resend_overdue(Mono(ACK_WAIT_NS - 1));
        assert!(!outbox.has_unsent());
        outbox.resend_overdue(Mono(ACK_WAIT_NS));
        assert_eq!(seqs(outbox.next_batch(Mono(ACK_WAIT_NS))), [0]);
    }

    proptest! {
        /// Under any order of pushes, sends, acks (also doubled, also of nothing) and breaks, every record stays until it
        /// was acked, and is sent at most once between two breaks.
        #[test]
        fn nothing_is_lost(steps in prop::collection::vec((0..4_u8, 0..30_u64, 0..6_u64), 1..200)) {
            let mut outbox = Outbox::new(7, 10_000);
            let (mut next, mut unacked, mut in_flight) = (0, BTreeSet::new(), BTreeSet::new());
            for (step, a, b) in steps {
                match step {
                    0 => {
                        outbox.push(record(next));
                        unacked.insert(next);
                        next += 1;
                    }
                    1 => for seq in seqs(outbox.next_batch(Mono(1))) {
                        prop_assert!(in_flight.insert(seq), "{seq} sent twice");
                    },
                    2 => {
                        // Only what was sent can be acked.
                        let ranges: Vec<u64> = in_flight.iter().filter(|s| **s >= a && **s < a + b).flat_map(|s| [*s, 1]).collect();
                        outbox.ack(8, &ranges);
                        outbox.ack(7, &ranges);
                        outbox.ack(7, &ranges);
                        unacked.retain(|s| !(in_flight.contains(s) && *s >= a && *s < a + b));
                    }
                    _ => {
                        outbox.resend();
                        in_flight.clear();
                    }
                }
                prop_assert_eq!(outbox.len(), unacked.len());
            }
            outbox.resend();
            let mut left = Vec::new();
            while let Some(batch) = outbox.next_batch(Mono(1)) {
                left.extend(seqs(Some(batch)));
            }
            prop_assert_eq!(left, unacked.into_iter().collect::<Vec<_>>());
        }
    }
}
