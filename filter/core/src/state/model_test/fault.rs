//! A control plane that breaks one rule: each must be found.

use std::collections::VecDeque;

use crate::proto::dataplane::{Blocked, Mark, SyncDown, sync_down::M};
use crate::state::feed::HelloFacts;
use crate::state::reference::Database;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// S2: the counter is read after the content.
    CounterAfterContent,
    /// S4: a mark overtakes the keys that it stands for.
    MarkFirst,
    /// S5: what the log lacks is taken for unchanged.
    LogCutIgnored,
    /// S5: an Envoy of another era, or without its first end, gets only what changed.
    DeltaForAll,
    /// S6: a bucket that became empty during a resync is left out.
    LateEmptiesSkipped,
    /// S6: the floor is where the resync ended.
    FloorAtEnd,
    /// S6: marks while it resyncs.
    MarksInResync,
    /// S8: a reader that takes the bucket before head.
    BucketBeforeHead,
    /// S10: the list goes after the keys.
    BlockedLast,
    /// S10: each part of the list for the whole.
    PartsForWhole,
    /// S11: an Envoy that said Hello before is taken to have the profiles.
    ProfilesOnce,
}

impl Fault {
    pub fn in_hello(self, hello: HelloFacts, replica: &Database) -> HelloFacts {
        match self {
            Self::DeltaForAll => HelloFacts { era: replica.era, complete: true, ..hello },
            _ => hello,
        }
    }

    /// Puts `message` on its way, in a wrong form or at a wrong place.
    pub fn in_flight(
        self,
        mut message: SyncDown,
        resyncing: bool,
        hello: &HelloFacts,
        flight: &mut VecDeque<SyncDown>,
    ) {
        let mut also = None;
        match (self, &mut message.m) {
            (Self::CounterAfterContent, Some(M::Keys(keys))) => {
                keys.buckets.iter_mut().for_each(|bucket| bucket.revision += 1);
            }
            (Self::MarkFirst, Some(M::Mark(_))) | (Self::BlockedLast, Some(M::Keys(_))) => {
                return flight.push_front(message);
            }
            (Self::LateEmptiesSkipped, Some(M::Keys(keys))) if resyncing => {
                keys.buckets.retain(|bucket| !bucket.records.is_empty());
            }
            (Self::FloorAtEnd, Some(M::ResyncEnd(end))) => end.floor = end.to,
            (Self::MarksInResync, Some(M::Keys(keys))) if resyncing => {
                let to = keys.buckets.iter().map(|bucket| bucket.revision).max().unwrap_or(0);
                also = Some(M::Mark(Mark { era: keys.era, from: hello.key_revision, to, now_unix_ns: 0 }));
            }
            (Self::PartsForWhole, Some(M::Blocked(part))) => {
                *part = Blocked { index: 0, count: 1, revision: part.revision, ..part.clone() };
            }
            (Self::ProfilesOnce, Some(M::Profiles(_))) if hello.complete => return,
            _ => {}
        }
        flight.push_back(message);
        flight.extend(also.map(|m| SyncDown { m: Some(m) }));
    }
}
