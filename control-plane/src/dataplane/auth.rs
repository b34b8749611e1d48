//! Who an Envoy is: its node token.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use sluicegate_core::seal::SealKey;
use tokio::time::{Instant, sleep, timeout};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use crate::credentials::Keyring;
use crate::store::{Node, Store};

/// How long a token that was found is not looked up again: a revocation takes effect after it.
const FRESH: Duration = Duration::from_secs(10);
/// How long a token found before is still good while the database is away: nobody can revoke it meanwhile.
const STALE: Duration = Duration::from_secs(3600);
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_CACHED: usize = 10_000;

/// The holder of a node token.
#[derive(Debug)]
pub struct NodeIdentity {
    pub token_name: String,
    pub group_id: i32,
    pub group: String,
    pub seal_key: SealKey,
}

/// Looks node tokens up, with a short memory. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Authenticator {
    store: Store,
    keyring: Arc<Keyring>,
    fresh: Duration,
    found: Arc<Mutex<HashMap<[u8; 32], Found>>>,
}

/// A token that was good when its stream began.
#[derive(Debug)]
pub struct Credentials {
    pub node: Arc<NodeIdentity>,
    authenticator: Authenticator,
    hash: [u8; 32],
}

#[derive(Clone, Debug)]
struct Found {
    node: Arc<NodeIdentity>,
    at: Instant,
}

impl Authenticator {
    pub fn new(store: Store, keyring: Arc<Keyring>) -> Self {
        Self { store, keyring, fresh: FRESH, found: Arc::default() }
    }

    /// With another time than 10 s until a revocation takes effect.
    #[must_use]
    pub fn with_memory(self, fresh: Duration) -> Self {
        Self { fresh, ..self }
    }

    /// By the metadata `authorization: Bearer sgn-...`.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` for none, an unknown, expired or revoked one; `UNAVAILABLE` when that cannot be known now.
    pub async fn authenticate(&self, metadata: &MetadataMap) -> Result<Credentials, Status> {
        let header = metadata.get("authorization").and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer "));
        let Some(token) = token else {
            return Err(Status::unauthenticated("no node token: the metadata `authorization` must be `Bearer sgn-..`"));
        };
        let hash = Sha256::digest(token.as_bytes()).into();
        Ok(Credentials { node: self.node(&hash).await?, authenticator: self.clone(), hash })
    }

    async fn node(&self, hash: &[u8; 32]) -> Result<Arc<NodeIdentity>, Status> {
        let found = self.lock().get(hash).cloned();
        if let Some(found) = &found
            && found.at.elapsed() < self.fresh
        {
            return Ok(Arc::clone(&found.node));
        }
        match timeout(LOOKUP_TIMEOUT, self.store.node_by_token(hash)).await {
            Ok(Ok(Some(node))) => self.keep(hash, &node),
            Ok(Ok(None)) => {
                self.lock().remove(hash);
                Err(Status::unauthenticated("the node token is unknown, expired or revoked"))
            }
            Ok(Err(_)) | Err(_) => match found {
                Some(found) if found.at.elapsed() < STALE => Ok(found.node),
                _ => Err(Status::unavailable("the database is away; cannot look the node token up")),
            },
        }
    }

    fn keep(&self, hash: &[u8; 32], node: &Node) -> Result<Arc<NodeIdentity>, Status> {
        let key = node.seal_key(&self.keyring).map_err(|error| {
            tracing::error!(token = node.token_name, %error, "cannot open the seal key of a node token");
            Status::internal("the seal key of this node token does not open under the control plane's keyring")
        })?;
        let node = Arc::new(NodeIdentity {
            token_name: node.token_name.clone(),
            group_id: node.group_id,
            group: node.group.clone(),
            seal_key: SealKey::new(*key),
        });
        let mut found = self.lock();
        if found.len() >= MAX_CACHED {
            found.clear();
        }
        found.insert(*hash, Found { node: Arc::clone(&node), at: Instant::now() });
        Ok(node)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Found>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Credentials {
    /// Returns when the token is no longer good: expired, or revoked.
    pub async fn lost(&self) -> Status {
        loop {
            sleep(self.authenticator.fresh).await;
            match self.authenticator.node(&self.hash).await {
                Err(status) if status.code() == Code::Unauthenticated => {
                    tracing::warn!(token = self.node.token_name, "a node token is no longer good; its stream ends");
                    return status;
                }
                Ok(_) | Err(_) => {}
            }
        }
    }
}
