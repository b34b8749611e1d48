//! Who may open an xDS stream: whoever shows a node token that the store knows.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};
use tokio::time::{Duration, Instant};
use tonic::Status;

use crate::store::Store;
use crate::xds::Authenticate;

/// How long a token that was good goes on being good while the database is away, and no longer.
const OUTAGE_GRACE: Duration = Duration::from_secs(3600);

/// Checks node tokens against the store, and remembers good ones for its outages.
#[derive(Debug)]
pub struct NodeTokens {
    store: Store,
    /// When each token, by its hash, was last seen to be good. Bounded by the tokens that there are.
    good: Mutex<HashMap<[u8; 32], Instant>>,
}

impl NodeTokens {
    pub fn new(store: Store) -> Self {
        Self { store, good: Mutex::default() }
    }
}

#[tonic::async_trait]
impl Authenticate for NodeTokens {
    async fn authenticate(&self, token: Option<&str>) -> Result<(), Status> {
        let token = token.ok_or_else(|| Status::unauthenticated("send a node token: authorization: Bearer <token>"))?;
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let found = self.store.node_by_token(&hash).await;
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        match found {
            Ok(Some(_)) => {
                good.insert(hash, Instant::now());
                Ok(())
            }
            Ok(None) => {
                good.remove(&hash);
                Err(Status::unauthenticated("this node token is unknown, expired or revoked"))
            }
            Err(_) if good.get(&hash).is_some_and(|seen| seen.elapsed() < OUTAGE_GRACE) => Ok(()),
            Err(error) => {
                tracing::warn!(%error, "cannot check a node token");
                Err(Status::unavailable("cannot check the node token now"))
            }
        }
    }
}
