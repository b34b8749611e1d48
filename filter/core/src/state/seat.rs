//! The VMs of this Envoy, each in a seat of its own.

use super::Stamp;
use super::bytes::{Fields, Writer};
use super::store::{SharedData, StoreFault, keys, update};

/// A VM that did not beat for so long is dead: trapped, or its worker hangs.
pub const EXPIRY_NS: u64 = 10_000_000_000;
/// How often a VM beats.
pub const BEAT_NS: u64 = 1_000_000_000;

/// What a VM says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Of the policy it works by.
    pub policy: Stamp,
    pub requests_in_flight: u32,
    pub records_waiting: u32,
    /// Since the VM began.
    pub records_dropped: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seat {
    /// 0: free.
    vm: u64,
    beat: u64,
    standing: Standing,
    /// VMs that died in this seat without leaving it.
    died: u32,
}

/// All VMs together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub vms: u32,
    /// The oldest policy any living VM works by.
    pub policy: Stamp,
    pub requests_in_flight: u32,
    pub records_waiting: u32,
    pub records_dropped: u64,
    /// VMs that died without leaving.
    pub traps: u32,
}

/// Renews the VM's seat, or takes one: a free one, or a dead VM's. `now` is monotonic, in ns. Returns the seat, `None`
/// where all are taken.
pub fn beat<S: SharedData>(
    store: &S,
    seats: u32,
    mine: Option<u32>,
    vm: u64,
    standing: Standing,
    now: u64,
) -> Result<Option<u32>, StoreFault> {
    let renew = |seat: &Seat| (seat.vm == vm).then_some(Seat { beat: now, standing, ..*seat });
    if let Some(index) = mine
        && change(store, index, |seat| renew(&seat))?
    {
        return Ok(Some(index));
    }
    for index in 0..seats {
        let taken = change(store, index, |seat| {
            let died = match (seat.vm, seat.is_dead(now)) {
                (0, _) => seat.died,
                (_, true) => seat.died.saturating_add(1),
                (_, false) => return None,
            };
            Some(Seat { vm, beat: now, standing, died })
        })?;
        if taken {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// The VM ends in good order.
pub fn leave<S: SharedData>(store: &S, seat: u32, vm: u64) -> Result<(), StoreFault> {
    change(store, seat, |seat| (seat.vm == vm).then_some(Seat { died: seat.died, ..Seat::default() }))?;
    Ok(())
}

/// Adds the seats up.
pub fn summary<S: SharedData>(store: &S, seats: u32, now: u64) -> Result<Summary, StoreFault> {
    let mut sum = Summary::default();
    for index in 0..seats {
        // Seats are taken in order: behind one that was never taken there is none.
        let Some((value, _)) = store.get(&keys::seat(index))? else { break };
        let seat = Seat::decode(&value).unwrap_or_default();
        sum.traps = sum.traps.saturating_add(seat.died);
        if seat.vm == 0 {
            continue;
        }
        if seat.is_dead(now) {
            sum.traps = sum.traps.saturating_add(1);
            continue;
        }
        let Standing { policy, requests_in_flight, records_waiting, records_dropped } = seat.standing;
        sum.policy = if sum.vms == 0 { policy } else { sum.policy.min(policy) };
        sum.vms += 1;
        sum.requests_in_flight = sum.requests_in_flight.saturating_add(requests_in_flight);
        sum.records_waiting = sum.records_waiting.saturating_add(records_waiting);
        sum.records_dropped = sum.records_dropped.saturating_add(records_dropped);
    }
    Ok(sum)
}

fn change<S: SharedData>(
    store: &S,
    index: u32,
    mut step: impl FnMut(Seat) -> Option<Seat>,
) -> Result<bool, StoreFault> {
    update(store, &keys::seat(index), |value| {
        step(value.and_then(Seat::decode).unwrap_or_default()).map(|seat| seat.encode())
    })
}

impl Seat {
    fn is_dead(&self, now: u64) -> bool {
        now.saturating_sub(self.beat) > EXPIRY_NS
    }

    fn encode(&self) -> Vec<u8> {
        let s = &self.standing;
        Writer::new(52)
            .u64(self.vm)
            .u64(self.beat)
            .stamp(s.policy)
            .u32(s.requests_in_flight)
            .u32(s.records_waiting)
            .u64(s.records_dropped)
            .u32(self.died)
            .done()
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let mut f = Fields::new(value)?;
        Some(Self {
            vm: f.u64()?,
            beat: f.u64()?,
            standing: Standing {
                policy: f.stamp()?,
                requests_in_flight: f.u32()?,
                records_waiting: f.u32()?,
                records_dropped: f.u64()?,
            },
            died: f.u32()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::store::testing::Map;

    const NOW: u64 = 100_000_000_000;

    fn policy(revision: u64) -> Standing {
        Standing { policy: Stamp::new(1, revision), ..Standing::default() }
    }

    #[test]
    fn seats_are_taken_left_and_inherited() {
        let store = Map::default();
        assert_eq!(beat(&store, 2, None, 11, policy(5), NOW), Ok(Some(0)));
        assert_eq!(beat(&store, 2, None, 12, policy(4), NOW), Ok(Some(1)));
        assert_eq!(beat(&store, 2, None, 13, policy(9), NOW), Ok(None));
        let sum = summary(&store, 2, NOW).unwrap();
        assert_eq!((sum.vms, sum.policy, sum.traps), (2, Stamp::new(1, 4), 0));

        leave(&store, 1, 12).unwrap();
        assert_eq!(beat(&store, 2, None, 13, policy(9), NOW), Ok(Some(1)));
        assert_eq!(summary(&store, 2, NOW).unwrap().policy, Stamp::new(1, 5));

        // VM 11 traps: it counts while its seat is empty, and once when it is taken.
        let later = NOW + EXPIRY_NS + 1;
        assert_eq!(beat(&store, 2, Some(1), 13, policy(9), later), Ok(Some(1)));
        assert_eq!(summary(&store, 2, later).unwrap().traps, 1);
        assert_eq!(beat(&store, 2, None, 14, policy(9), later), Ok(Some(0)));
        let sum = summary(&store, 2, later).unwrap();
        assert_eq!((sum.vms, sum.policy, sum.traps), (2, Stamp::new(1, 9), 1));
        // It was only asleep: its seat is another's now.
        assert_eq!(beat(&store, 2, Some(0), 11, policy(5), later), Ok(None));
    }
}
