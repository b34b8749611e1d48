//! Usage records on their way to the control plane: kept until acked, resent after a break, bounded.

use std::collections::VecDeque;

use prost::Message;

use super::Mono;
use crate::proto::dataplane::{FlowUp, Record, Records, flow_up};

/// Messages stay under the wire's 64 KB with room for their frame.
const MAX_BATCH_BYTES: usize = 60_000;

/// An ack that stays away so long, in ns, is taken for lost, or the commit for failed.
const ACK_WAIT_NS: u64 = 10_000_000_000;

/// The unacked records of one VM, oldest first.
#[derive(Debug)]
pub struct Outbox {
    vm: u64,
    capacity: usize,
    waiting: VecDeque<Waiting>,
    /// How many of `waiting` are to be sent.
    unsent: usize,
    dropped: u64,
}

#[derive(Debug)]
struct Waiting {
    size: usize,
    /// When it went out on the present stream.
    sent: Option<Mono>,
    record: Record,
}

impl Outbox {
    /// For the VM incarnation `vm`, keeping at most `capacity` records.
    pub fn new(vm: u64, capacity: usize) -> Self {
        Self { vm, capacity, waiting: VecDeque::new(), unsent: 0, dropped: 0 }
    }

    /// Queues a record. When full the oldest goes (it is in the access log too) and is counted.
    pub fn push(&mut self, record: Record) {
        if self.waiting.len() >= self.capacity
            && let Some(oldest) = self.waiting.pop_front()
        {
            self.unsent -= usize::from(oldest.sent.is_none());
            self.dropped += 1;
        }
        self.waiting.push_back(Waiting { size: record.encoded_len() + 4, sent: None, record });
        self.unsent += 1;
    }

    /// The next message to send, or nothing when all that is queued is on its way.
    pub fn next_batch(&mut self, now: Mono) -> Option<FlowUp> {
        if self.unsent == 0 {
            return None;
        }
        let mut size = 0;
        let mut records = Vec::new();
        for waiting in self.waiting.iter_mut().filter(|w| w.sent.is_none()) {
            if !records.is_empty() && size + waiting.size > MAX_BATCH_BYTES {
                break;
            }
            size += waiting.size;
            waiting.sent = Some(now);
            records.push(waiting.record.clone());
        }
        self.unsent -= records.len();
        Some(FlowUp { m: Some(flow_up::M::Records(Records { vm: self.vm, records })) })
    }

    /// Forgets what the control plane has committed. `ranges` is first, length, first, length ..; an ack for another
    /// incarnation is ignored, and so is a seq that is not here.
    pub fn ack(&mut self, vm: u64, ranges: &[u64]) {
        if vm != self.vm {
            return;
        }
        let acked =
            |seq: u64| ranges.as_chunks::<2>().0.iter().any(|[first, length]| seq >= *first && seq - *first < *length);
        self.waiting.retain(|w| !acked(w.record.seq));
        self.count();
    }

    /// The stream broke: everything unacked is to be sent again.
    pub fn resend(&mut self) {
        self.waiting.iter_mut().for_each(|w| w.sent = None);
        self.count();
    }

    /// What was not acked in time is to be sent again, each for itself: others may well be acked meanwhile. Now and then.
    pub fn resend_overdue(&mut self, now: Mono) {
        for waiting in &mut self.waiting {
            waiting.sent = waiting.sent.filter(|sent| now.0.saturating_sub(sent.0) < ACK_WAIT_NS);
        }
        self.count();
    }

    fn count(&mut self) {
        self.unsent = self.waiting.iter().filter(|w| w.sent.is_none()).count();
    }

    /// Records not acked yet.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether a call of [`Self::next_batch`] would find something.
    pub fn has_unsent(&self) -> bool {
        self.unsent > 0
    }

    /// Records lost to the capacity since the VM began.
    pub fn dropped(&self) -> u64 {
        self.dropped
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

    fn seqs(batch: Option<FlowUp>) -> Vec<u64> {
        match batch {
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
            assert!(batch.encoded_len() < 64_000);
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
