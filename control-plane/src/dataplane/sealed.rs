//! Which provider credentials a stream is still to be sent, sealed for its node.

use std::collections::HashMap;

use sluicegate_core::proto::dataplane::{Credential, SyncDown, sync_down::M};
use sluicegate_core::seal::{NONCE_BYTES, SealKey, seal};

use crate::credentials::random;
use crate::publisher::Published;

/// Revision of each credential that a stream sent.
#[derive(Debug, Default)]
pub(super) struct Sealed(HashMap<u32, u64>);

impl Sealed {
    /// The next credential that was not sent, sealed; or the withdrawal of one that is gone.
    pub(super) fn next(&mut self, view: &Published, key: &SealKey) -> Option<SyncDown> {
        let era = view.clock.era;
        let unsent = view.credentials.iter().find(|c| self.0.get(&c.id) != Some(&c.revision));
        let credential = match unsent {
            Some(c) => {
                let nonce: [u8; NONCE_BYTES] =
                    random::bytes().inspect_err(|error| tracing::error!(%error, "cannot seal a credential")).ok()?;
                let sealed = seal(key, nonce, era, c.id, c.revision, c.secret.expose().as_bytes());
                self.0.insert(c.id, c.revision);
                Credential { era, id: c.id, revision: c.revision, sealed: sealed.into() }
            }
            None => {
                let gone = self.0.keys().copied().find(|id| !view.credential_ids.contains(id))?;
                self.0.remove(&gone);
                let revision = view.clock.parts.credentials;
                Credential { era, id: gone, revision, sealed: bytes::Bytes::new() }
            }
        };
        Some(SyncDown { m: Some(M::Credential(credential)) })
    }
}
