//! Of each subscriber of an Envoy, only the stream with the highest epoch lives.
//!
//! A trapped VM leaves its stream open behind it (a zombie). What a zombie applies is harmless; it would only cost bandwidth.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

/// Who holds a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subscriber {
    pub(super) node: Arc<str>,
    pub(super) boot: u64,
    pub(super) subscriber: u32,
}

#[derive(Debug)]
struct Holder {
    epoch: u64,
    ticket: u64,
    closed: CancellationToken,
}

/// All open Sync streams of this replica.
#[derive(Clone, Debug, Default)]
pub(super) struct Fence {
    holders: Arc<Mutex<Holders>>,
}

#[derive(Debug, Default)]
struct Holders {
    next_ticket: u64,
    by_subscriber: HashMap<Subscriber, Holder>,
}

/// The right to be the stream of a subscriber; given back when dropped.
#[derive(Debug)]
pub(super) struct Pass {
    fence: Fence,
    subscriber: Subscriber,
    ticket: u64,
    closed: CancellationToken,
}

impl Fence {
    /// Closes an older stream of `subscriber`. `None` when there is one with a higher epoch. Of two with the same epoch, the
    /// later one is the reconnection.
    pub(super) fn enter(&self, subscriber: Subscriber, epoch: u64) -> Option<Pass> {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holder) = holders.by_subscriber.get(&subscriber) {
            if holder.epoch > epoch {
                return None;
            }
            holder.closed.cancel();
        }
        holders.next_ticket += 1;
        let (ticket, closed) = (holders.next_ticket, CancellationToken::new());
        holders.by_subscriber.insert(subscriber.clone(), Holder { epoch, ticket, closed: closed.clone() });
        Some(Pass { fence: self.clone(), subscriber, ticket, closed })
    }
}

impl Pass {
    /// Returns when a newer stream of the subscriber has come.
    pub(super) async fn overtaken(&self) {
        self.closed.cancelled().await;
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut holders = self.fence.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.by_subscriber.get(&self.subscriber).is_some_and(|h| h.ticket == self.ticket) {
            holders.by_subscriber.remove(&self.subscriber);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscriber(boot: u64) -> Subscriber {
        Subscriber { node: "n".into(), boot, subscriber: 0 }
    }

    #[test]
    fn the_highest_epoch_wins_and_the_later_of_two() {
        let fence = Fence::default();
        let first = fence.enter(subscriber(1), 5).unwrap();
        assert!(fence.enter(subscriber(1), 4).is_none());
        assert!(!first.closed.is_cancelled());
        let again = fence.enter(subscriber(1), 5).unwrap();
        assert!(first.closed.is_cancelled());
        let other = fence.enter(subscriber(2), 1).unwrap();
        assert!(!again.closed.is_cancelled() && !other.closed.is_cancelled());
        drop(first);
        assert!(fence.enter(subscriber(1), 4).is_none(), "a closed stream does not open the fence for an older one");
        drop(again);
        assert!(fence.enter(subscriber(1), 4).is_some(), "the fence forgets who is gone");
    }
}
