//! Which VM holds which of the two Sync streams.

use super::bytes::{Fields, Writer};
use super::store::{SharedData, StoreFault, keys, update};

/// A holder that did not renew for so long is gone. Shorter ones were seen to expire on a busy machine, and then there
/// was no stream at all.
pub const EXPIRY_NS: u64 = 2_000_000_000;
/// How often a holder renews.
pub const RENEW_NS: u64 = 500_000_000;
/// Two streams: the second takes over without a gap.
pub const SUBSCRIBERS: u32 = 2;

/// What a VM holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// 0 or 1; the holder of 0 is the leader.
    pub subscriber: u32,
    /// Rises with every take-over: the control plane closes streams of lower epochs.
    pub epoch: u64,
}

/// One VM's candidacy.
#[derive(Debug)]
pub struct Candidate {
    nonce: u64,
    /// Of the configuration it would work by: a newer one takes over at once.
    config: u64,
    claim: Option<Claim>,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    held: Held,
    renewed: u64,
    /// Seen again on a later tick: only then is it acted on.
    confirmed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Record {
    nonce: u64,
    beat: u64,
    epoch: u64,
    config: u64,
}

impl Candidate {
    /// `nonce` is random and not 0.
    pub fn new(nonce: u64, config: u64) -> Self {
        Self { nonce: nonce.max(1), config, claim: None }
    }

    /// To be called on each tick; `now` is monotonic, in ns. Returns what this VM holds and may act on.
    pub fn tick<S: SharedData>(&mut self, store: &S, now: u64) -> Result<Option<Held>, StoreFault> {
        if let Some(claim) = self.claim {
            self.claim = self.renew(store, claim, now)?;
        }
        // Whoever holds the second stream moves up when no one holds the first.
        if self.claim.is_none_or(|c| c.held.subscriber != 0) {
            self.claim_any(store, now)?;
        }
        Ok(self.claim.filter(|c| c.confirmed).map(|c| c.held))
    }

    /// Gives up what is held, so that another VM need not wait for it to expire.
    pub fn release<S: SharedData>(&mut self, store: &S) -> Result<(), StoreFault> {
        match self.claim.take() {
            Some(claim) => self.vacate(store, claim.held.subscriber),
            None => Ok(()),
        }
    }

    fn vacate<S: SharedData>(&self, store: &S, subscriber: u32) -> Result<(), StoreFault> {
        update(store, &keys::subscriber(subscriber), |value| {
            let record = value.and_then(Record::decode)?;
            (record.nonce == self.nonce).then(|| Record { nonce: 0, beat: 0, ..record }.encode())
        })?;
        Ok(())
    }

    fn renew<S: SharedData>(&self, store: &S, claim: Claim, now: u64) -> Result<Option<Claim>, StoreFault> {
        let due = !claim.confirmed || now.saturating_sub(claim.renewed) >= RENEW_NS;
        if !due {
            return Ok(Some(claim));
        }
        let mine = update(store, &keys::subscriber(claim.held.subscriber), |value| {
            let record = value.and_then(Record::decode)?;
            (record.nonce == self.nonce).then(|| Record { beat: now, ..record }.encode())
        })?;
        Ok(mine.then_some(Claim { renewed: now, confirmed: true, ..claim }))
    }

    fn claim_any<S: SharedData>(&mut self, store: &S, now: u64) -> Result<(), StoreFault> {
        let wanted = self.claim.map_or(SUBSCRIBERS, |c| c.held.subscriber);
        for subscriber in 0..wanted {
            let Some(epoch) = self.claim_one(store, subscriber, now)? else { continue };
            if let Some(old) = self.claim {
                self.vacate(store, old.held.subscriber)?;
            }
            self.claim = Some(Claim { held: Held { subscriber, epoch }, renewed: now, confirmed: false });
            return Ok(());
        }
        Ok(())
    }

    fn claim_one<S: SharedData>(&self, store: &S, subscriber: u32, now: u64) -> Result<Option<u64>, StoreFault> {
        let mut epoch = 0;
        let claimed = update(store, &keys::subscriber(subscriber), |value| {
            let record = value.and_then(Record::decode).unwrap_or_default();
            let expired = record.nonce == 0 || now.saturating_sub(record.beat) > EXPIRY_NS;
            if !expired && record.config >= self.config {
                return None;
            }
            epoch = record.epoch.saturating_add(1);
            Some(Record { nonce: self.nonce, beat: now, epoch, config: self.config }.encode())
        })?;
        Ok(claimed.then_some(epoch))
    }
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        Writer::new(32).u64(self.nonce).u64(self.beat).u64(self.epoch).u64(self.config).done()
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let mut f = Fields::new(value)?;
        Some(Self { nonce: f.u64()?, beat: f.u64()?, epoch: f.u64()?, config: f.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::store::testing::Map;

    const SECOND: u64 = 1_000_000_000;

    fn held(subscriber: u32, epoch: u64) -> Option<Held> {
        Some(Held { subscriber, epoch })
    }

    #[test]
    fn a_claim_is_acted_on_a_tick_later() {
        let store = Map::default();
        let (mut a, mut b, mut c) = (Candidate::new(1, 0), Candidate::new(2, 0), Candidate::new(3, 0));
        for (candidate, expected) in [(&mut a, held(0, 1)), (&mut b, held(1, 1)), (&mut c, None)] {
            assert_eq!(candidate.tick(&store, SECOND), Ok(None));
            assert_eq!(candidate.tick(&store, SECOND + 1), Ok(expected));
        }
    }

    #[test]
    fn the_second_moves_up_and_the_third_moves_in() {
        let store = Map::default();
        let (mut a, mut b, mut c) = (Candidate::new(1, 0), Candidate::new(2, 0), Candidate::new(3, 0));
        let mut now = SECOND;
        for _ in 0..2 {
            for candidate in [&mut a, &mut b, &mut c] {
                candidate.tick(&store, now).unwrap();
            }
        }
        // `a` dies without a word: after the expiry `b` moves up, and `c` takes what it leaves.
        for _ in 0..6 {
            now += SECOND / 2;
            b.tick(&store, now).unwrap();
            c.tick(&store, now).unwrap();
        }
        assert_eq!(b.tick(&store, now), Ok(held(0, 2)));
        assert_eq!(c.tick(&store, now), Ok(held(1, 2)));
        // `a` was only asleep: it learns that it holds nothing.
        assert_eq!(a.tick(&store, now), Ok(None));
    }

    #[test]
    fn a_live_holder_is_not_replaced_but_by_a_newer_configuration() {
        let store = Map::default();
        let (mut old, mut same, mut newer) = (Candidate::new(1, 7), Candidate::new(2, 7), Candidate::new(3, 8));
        old.tick(&store, SECOND).unwrap();
        same.tick(&store, SECOND).unwrap();
        assert_eq!(same.tick(&store, SECOND), Ok(held(1, 1)));
        newer.tick(&store, SECOND + 1).unwrap();
        assert_eq!(newer.tick(&store, SECOND + 2), Ok(held(0, 2)));
        assert_eq!(old.tick(&store, SECOND + RENEW_NS), Ok(None));
    }

    #[test]
    fn what_is_released_is_free_at_once() {
        let store = Map::default();
        let (mut a, mut b) = (Candidate::new(1, 0), Candidate::new(2, 0));
        a.tick(&store, SECOND).unwrap();
        a.release(&store).unwrap();
        b.tick(&store, SECOND).unwrap();
        assert_eq!(b.tick(&store, SECOND), Ok(held(0, 2)));
    }
}
