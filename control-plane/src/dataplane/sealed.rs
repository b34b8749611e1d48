//! Which provider credentials a stream is still to be sent, sealed for its node.

use std::collections::HashMap;

use sluicegate_core::proto::dataplane::{Credential, SyncDown, sync_down::M};
use sluicegate_core::seal::{NONCE_BYTES, SealKey, seal};
use sluicegate_core::state::feed::View as _;

use crate::credentials::random;
use crate::publisher::GroupView;

/// Revision of each credential that a stream sent.
#[derive(Debug)]
pub(super) struct Sealed(HashMap<u32, u64>);

impl Sealed {
    /// What the group may not hold is withdrawn once: it may have been allowed before this stream began.
    pub(super) fn new(view: &GroupView<'_>) -> Self {
        Self(view.withheld().map(|id| (id, 0)).collect())
    }

    /// The next credential that was not sent, sealed; or the withdrawal of one that is gone.
    pub(super) fn next(&mut self, view: &GroupView<'_>, key: &SealKey) -> Option<SyncDown> {
        let era = view.era();
        let unsent = view.credentials().find(|c| self.0.get(&c.id) != Some(&view.revision_of(c)));
        let credential = match unsent {
            Some(c) => {
                let nonce: [u8; NONCE_BYTES] =
                    random::bytes().inspect_err(|error| tracing::error!(%error, "cannot seal a credential")).ok()?;
                let revision = view.revision_of(c);
                let sealed = seal(key, nonce, era, c.id, revision, c.secret.expose().as_bytes());
                self.0.insert(c.id, revision);
                Credential { era, id: c.id, revision, sealed: sealed.into() }
            }
            None => {
                let gone = self.0.keys().copied().find(|id| !view.has_credential(*id))?;
                self.0.remove(&gone);
                let revision = view.credentials_revision();
                Credential { era, id: gone, revision, sealed: bytes::Bytes::new() }
            }
        };
        Some(SyncDown { m: Some(M::Credential(credential)) })
    }
}
