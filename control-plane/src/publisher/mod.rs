//! Follows the store and tells everyone else what is new.
//!
//! One task per replica hears every commit (`LISTEN`), reads what it changed and publishes the next immutable [`Published`].
//! A slow poll does the same once a second: it brings the time for the marks, and heals a notification that was lost. While
//! the database is away nothing is published; what was stays readable, with the time of its reading.

mod follow;
mod index;
mod published;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

pub use index::{Change, KeyIndex, MAX_BUCKETS};
pub use published::{Credential, GroupView, MAX_PART_BYTES, PolicyParts, Published, Scoped};

use crate::credentials::Keyring;
use crate::store::Store;

/// Where the latest [`Published`] is to be had; cheap to clone.
#[derive(Clone, Debug)]
pub struct Publisher {
    latest: watch::Receiver<Option<Arc<Published>>>,
    now: Arc<Notify>,
}

impl Publisher {
    /// Starts to follow `store`, whose stored credentials open with `keyring`. The task ends with the last subscriber.
    pub fn spawn(store: Store, keyring: Arc<Keyring>) -> Self {
        let (sender, latest) = watch::channel(None);
        let now = Arc::new(Notify::new());
        tokio::spawn(follow::Follower::new(store, keyring, sender, Arc::clone(&now)).run());
        Self { latest, now }
    }

    /// The latest state, `None` before the first reading; wakes at every commit and every second.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Published>>> {
        self.latest.clone()
    }

    pub fn latest(&self) -> Option<Arc<Published>> {
        self.latest.borrow().clone()
    }

    /// The latest state, waited for when there was no reading yet. `None` when there is none within `patience`.
    pub async fn first(&self, patience: Duration) -> Option<Arc<Published>> {
        timeout(patience, self.latest.clone().wait_for(Option::is_some)).await.ok()?.ok()?.clone()
    }

    /// Reads again without waiting for the next second: a new stream wants a fresh clock. Many at once are one reading.
    pub fn refresh(&self) {
        self.now.notify_one();
    }
}
