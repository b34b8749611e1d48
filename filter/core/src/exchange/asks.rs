//! What the control plane is asked: who somebody is. One question per identity, however many requests wait for the answer.

use std::collections::BTreeMap;

use super::Mono;
use super::credential::KeyHash;
use super::token::Presented;
use crate::proto::dataplane::{Resolve, resolved::Outcome};
use crate::refusal::Refusal;

/// Different identities that are asked for at once; more are a flood.
const MAX_OPEN: usize = 1_024;
/// Longer than any request waits: a question that has been open for this long has nobody behind it.
const OPEN_NS: u64 = 10_000_000_000;
/// How long a no is remembered: who is refused asks again and again, and each question is a look into the database.
const NO_NS: u64 = 2_000_000_000;
const MAX_NOES: usize = 1_024;

#[derive(Debug, Default)]
pub struct Asks {
    open: BTreeMap<KeyHash, Open>,
    noes: BTreeMap<KeyHash, (Refusal, Mono)>,
}

#[derive(Debug)]
struct Open {
    question: Presented,
    since: Mono,
    sent: bool,
}

impl Asks {
    /// Asks, unless it was asked already. `false` when too much is asked at once.
    #[must_use]
    pub fn ask(&mut self, question: &Presented, now: Mono) -> bool {
        if self.open.contains_key(&question.hash) {
            return true;
        }
        if self.open.len() >= MAX_OPEN {
            return false;
        }
        self.open.insert(question.hash, Open { question: question.clone(), since: now, sent: false });
        true
    }

    /// The next question to be sent, by a boot with so many `buckets`.
    pub fn next_unsent(&mut self, buckets: u32) -> Option<Resolve> {
        let open = self.open.values_mut().find(|open| !open.sent)?;
        open.sent = true;
        Some(open.question.to_wire(buckets))
    }

    /// The stream is gone, and with it every answer.
    pub fn resend(&mut self) {
        self.open.values_mut().for_each(|open| open.sent = false);
    }

    /// An answer has come; a no is kept for a moment. Whose it is, if it was asked for.
    pub fn answered(&mut self, hash: &[u8], outcome: &Outcome, now: Mono) -> Option<KeyHash> {
        let hash = KeyHash(hash.try_into().ok()?);
        self.open.remove(&hash)?;
        let no = match outcome {
            Outcome::Found(_) => None,
            Outcome::Refused(reason) => Some(Refusal::IdentityNotAllowed { reason: reason.clone() }),
            Outcome::Unavailable(_) => Some(Refusal::NotReady),
        };
        if let Some(no) = no {
            if self.noes.len() >= MAX_NOES {
                self.noes.clear();
            }
            self.noes.insert(hash, (no, Mono(now.0.saturating_add(NO_NS))));
        }
        Some(hash)
    }

    /// The no that an identity got a moment ago.
    pub fn refusal(&self, hash: &KeyHash, now: Mono) -> Option<Refusal> {
        self.noes.get(hash).filter(|(_, until)| now < *until).map(|(refusal, _)| refusal.clone())
    }

    /// Forgets what nobody waits for any more.
    pub fn expire(&mut self, now: Mono) {
        self.open.retain(|_, open| now.0.saturating_sub(open.since.0) < OPEN_NS);
        self.noes.retain(|_, (_, until)| now < *until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::dataplane::Found;

    fn who(subject: &str) -> Presented {
        Presented::new(1, subject.to_owned(), Vec::new())
    }

    fn unsent(asks: &mut Asks) -> Vec<String> {
        std::iter::from_fn(|| asks.next_unsent(64)).map(|question| question.subject).collect()
    }

    #[test]
    fn one_question_for_all_who_wait() {
        let mut asks = Asks::default();
        assert!(asks.ask(&who("a"), Mono(0)) && asks.ask(&who("a"), Mono(1)));
        assert_eq!(unsent(&mut asks), ["a"]);
        assert!(asks.ask(&who("a"), Mono(2)));
        assert!(unsent(&mut asks).is_empty(), "it is on its way");
        asks.resend();
        assert_eq!(unsent(&mut asks), ["a"], "its stream broke");
        let found = Outcome::Found(Found::default());
        assert_eq!(asks.answered(&who("a").hash.0, &found, Mono(3)), Some(who("a").hash));
        assert_eq!(asks.answered(&who("a").hash.0, &found, Mono(3)), None, "late, and doubled");
        assert_eq!(asks.answered(b"short", &found, Mono(3)), None);
    }

    #[test]
    fn a_no_holds_for_a_moment() {
        let mut asks = Asks::default();
        assert!(asks.ask(&who("a"), Mono(0)));
        asks.answered(&who("a").hash.0, &Outcome::Refused("no".into()), Mono(0));
        assert_eq!(asks.refusal(&who("a").hash, Mono(NO_NS - 1)).unwrap().status(), 403);
        assert_eq!(asks.refusal(&who("a").hash, Mono(NO_NS)), None);
    }

    #[test]
    fn a_flood_is_bounded_and_passes() {
        let mut asks = Asks::default();
        for n in 0..MAX_OPEN {
            assert!(asks.ask(&who(&n.to_string()), Mono(0)));
        }
        assert!(!asks.ask(&who("one more"), Mono(1)));
        asks.expire(Mono(OPEN_NS));
        assert!(asks.ask(&who("one more"), Mono(OPEN_NS)));
    }
}
