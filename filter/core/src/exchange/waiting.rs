//! Requests that wait for something the VM does not have yet. The root resumes them, each exactly once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Mono;
use super::credential::KeyHash;

/// More would be a queue that cannot be worked off within anybody's patience.
const MAX_WAITERS: usize = 10_000;

/// What a request can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Awaited {
    Policy,
    /// To be decoded; it never arrives, as whoever has a turn does not wait any more.
    Turn,
    /// Who this is.
    Identity(KeyHash),
}

/// Who waits, for what and until when; by context id.
#[derive(Debug, Default)]
pub struct Waiting {
    waiters: BTreeMap<u32, (Awaited, Mono)>,
    by_awaited: BTreeSet<(Awaited, u32)>,
    by_deadline: BTreeSet<(Mono, u32)>,
    /// What they waited for is here.
    due: VecDeque<u32>,
}

impl Waiting {
    /// `false` when too many wait already.
    #[must_use]
    pub fn park(&mut self, context: u32, awaited: Awaited, until: Mono) -> bool {
        if self.waiters.len() + self.due.len() >= MAX_WAITERS {
            return false;
        }
        self.forget(context);
        self.waiters.insert(context, (awaited, until));
        self.by_awaited.insert((awaited, context));
        self.by_deadline.insert((until, context));
        true
    }

    /// It is here: all that wait for it are due.
    pub fn arrived(&mut self, awaited: Awaited) {
        let range = (awaited, 0)..=(awaited, u32::MAX);
        let contexts: Vec<u32> = self.by_awaited.range(range).map(|(_, context)| *context).collect();
        for context in contexts {
            self.remove(context);
            self.due.push_back(context);
        }
    }

    /// The next one to go on, because what it waits for is here or because its time is over.
    pub fn next(&mut self, now: Mono) -> Option<u32> {
        if let Some(context) = self.due.pop_front() {
            return Some(context);
        }
        let (until, context) = *self.by_deadline.first()?;
        (until <= now).then(|| {
            self.remove(context);
            context
        })
    }

    /// Whether somebody could go on at once.
    pub fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The request has ended.
    pub fn forget(&mut self, context: u32) {
        if !self.remove(context) {
            self.due.retain(|due| *due != context);
        }
    }

    fn remove(&mut self, context: u32) -> bool {
        let Some((awaited, until)) = self.waiters.remove(&context) else { return false };
        self.by_awaited.remove(&(awaited, context));
        self.by_deadline.remove(&(until, context));
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALICE: Awaited = Awaited::Identity(KeyHash([1; 32]));
    const BOB: Awaited = Awaited::Identity(KeyHash([2; 32]));

    #[test]
    fn who_waits_goes_on_once() {
        let mut waiting = Waiting::default();
        for (context, awaited, until) in [(1, ALICE, 50), (2, BOB, 10), (3, ALICE, 50), (4, Awaited::Policy, 20)] {
            assert!(waiting.park(context, awaited, Mono(until)));
        }
        waiting.arrived(ALICE);
        waiting.arrived(ALICE);
        assert!(waiting.has_due());
        let mut next = |now| std::iter::from_fn(|| waiting.next(Mono(now))).collect::<Vec<_>>();
        assert_eq!(next(5), [1, 3]);
        assert_eq!(next(15), [2], "its time is over");
        assert_eq!(next(19), [0_u32; 0]);
        assert_eq!(next(20), [4]);
        assert_eq!(next(u64::MAX), [0_u32; 0]);
    }

    #[test]
    fn who_has_left_does_not_go_on() {
        let mut waiting = Waiting::default();
        assert!(waiting.park(1, ALICE, Mono(9)) && waiting.park(2, ALICE, Mono(9)) && waiting.park(3, BOB, Mono(9)));
        waiting.forget(3);
        waiting.arrived(ALICE);
        waiting.forget(1);
        assert_eq!((waiting.next(Mono(100)), waiting.next(Mono(100))), (Some(2), None));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Park(u32, u8, u64),
        Arrived(u8),
        Forget(u32),
        Next(u64),
    }

    fn a_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..8_u32, 0..3_u8, 0..20_u64).prop_map(|(c, a, u)| Step::Park(c, a, u)),
            (0..3_u8).prop_map(Step::Arrived),
            (0..8_u32).prop_map(Step::Forget),
            (0..20_u64).prop_map(Step::Next),
        ]
    }

    fn awaited(n: u8) -> Awaited {
        [Awaited::Policy, ALICE, BOB][usize::from(n)]
    }

    proptest! {
        /// A stream that is resumed twice crashes Envoy: only who is parked comes out, and once.
        #[test]
        fn only_who_is_parked_comes_out(steps in prop::collection::vec(a_step(), 0..60)) {
            let (mut waiting, mut parked) = (Waiting::default(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Park(context, what, until) => {
                        prop_assert!(waiting.park(context, awaited(what), Mono(until)));
                        parked.insert(context);
                    }
                    Step::Arrived(what) => waiting.arrived(awaited(what)),
                    Step::Forget(context) => {
                        waiting.forget(context);
                        parked.remove(&context);
                    }
                    Step::Next(now) => {
                        if let Some(context) = waiting.next(Mono(now)) {
                            prop_assert!(parked.remove(&context));
                        }
                    }
                }
            }
            while let Some(context) = waiting.next(Mono(u64::MAX)) {
                prop_assert!(parked.remove(&context));
            }
            prop_assert!(parked.is_empty(), "forgotten: {parked:?}");
        }
    }
}
