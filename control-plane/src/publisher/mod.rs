//! Follows the store and tells everyone else what is new.
//!
//! One task per replica hears every commit (`LISTEN`), reads what it changed and publishes the next immutable [`Published`].
//! A slow poll does the same once a second: it brings the time for the marks, and heals a notification that was lost. While
//! the database is away nothing is published; what was stays readable, with the time of its reading.

mod follow;
mod index;
mod published;
mod record;

use std::sync::Arc;

use tokio::sync::watch;

pub use index::{Change, KeyIndex, RECORD_BYTES, Record};
pub use published::{Credential, MAX_PART_BYTES, PolicyParts, Published};

use crate::store::{CredentialRow, Store};

/// Opens a provider credential, wherever its row says the secret is.
pub trait OpenCredential: Send + Sync + 'static {
    /// # Errors
    /// Why it cannot be opened, without any of it.
    fn open(&self, row: &CredentialRow) -> Result<zeroize::Zeroizing<Vec<u8>>, String>;
}

/// Where the latest [`Published`] is to be had; cheap to clone.
#[derive(Clone, Debug)]
pub struct Publisher {
    latest: watch::Receiver<Option<Arc<Published>>>,
}

impl Publisher {
    /// Starts to follow `store`. The task ends with the last subscriber.
    pub fn spawn(store: Store, credentials: Arc<dyn OpenCredential>) -> Self {
        let (sender, latest) = watch::channel(None);
        tokio::spawn(follow::Follower::new(store, credentials, sender).run());
        Self { latest }
    }

    /// The latest state, `None` before the first reading; wakes at every commit and every second.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Published>>> {
        self.latest.clone()
    }

    pub fn latest(&self) -> Option<Arc<Published>> {
        self.latest.borrow().clone()
    }

    /// Waits for the first reading.
    pub async fn first(&self) -> Option<Arc<Published>> {
        self.latest.clone().wait_for(Option::is_some).await.ok()?.clone()
    }
}
