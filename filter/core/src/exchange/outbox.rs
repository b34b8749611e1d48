//! Usage records on their way to the control plane: kept until acked, resent after a break, bounded.

use std::collections::VecDeque;

use prost::Message;

use crate::proto::dataplane::{FlowUp, Record, Records, flow_up};

/// Messages stay under the wire's 64 KB with room for their frame.
const MAX_BATCH_BYTES: usize = 60_000;

/// The unacked records of one VM, oldest first.
#[derive(Debug)]
pub struct Outbox {
    vm: u64,
    capacity: usize,
    waiting: VecDeque<Waiting>,
    /// Of `waiting`, how many from the front were sent on the present stream.
    sent: usize,
    dropped: u64,
}

#[derive(Debug)]
struct Waiting {
    seq: u64,
    size: usize,
    record: Record,
}

impl Outbox {
    /// For the VM incarnation `vm`, keeping at most `capacity` records.
    pub fn new(vm: u64, capacity: usize) -> Self {
        Self { vm, capacity, waiting: VecDeque::new(), sent: 0, dropped: 0 }
    }

    /// Queues a record. When full the oldest goes (it is in the access log too) and is counted.
    pub fn push(&mut self, record: Record) {
        if self.waiting.len() >= self.capacity {
            self.waiting.pop_front();
            self.sent = self.sent.saturating_sub(1);
            self.dropped += 1;
        }
        self.waiting.push_back(Waiting { seq: record.seq, size: record.encoded_len() + 4, record });
    }

    /// The next message to send, or nothing when all that is queued is on its way.
    pub fn next_batch(&mut self) -> Option<FlowUp> {
        let mut size = 0;
        let mut records = Vec::new();
        for waiting in self.waiting.iter().skip(self.sent) {
            if !records.is_empty() && size + waiting.size > MAX_BATCH_BYTES {
                break;
            }
            size += waiting.size;
            records.push(waiting.record.clone());
        }
        if records.is_empty() {
            return None;
        }
        self.sent += records.len();
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
        let mut at = 0;
        let sent = self.sent;
        self.waiting.retain(|w| {
            let gone = acked(w.seq);
            if gone && at < sent {
                self.sent -= 1;
            }
            at += 1;
            !gone
        });
    }

    /// Everything unacked is to be sent again: the stream broke, or acks stay away.
    pub fn resend(&mut self) {
        self.sent = 0;
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
        self.sent < self.waiting.len()
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
        while let Some(batch) = outbox.next_batch() {
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
        assert_eq!(seqs(outbox.next_batch()), [0, 1, 2]);
        outbox.push(record(3));
        assert_eq!((outbox.len(), outbox.dropped()), (3, 1));
        assert_eq!(seqs(outbox.next_batch()), [3]);
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
                    1 => for seq in seqs(outbox.next_batch()) {
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
            while let Some(batch) = outbox.next_batch() {
                left.extend(seqs(Some(batch)));
            }
            prop_assert_eq!(left, unacked.into_iter().collect::<Vec<_>>());
        }
    }
}
