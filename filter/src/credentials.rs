//! Providers' credentials, opened: kept by each VM until head says that some have changed.

use std::collections::HashMap;

use sluicegate_core::policy::names;
use sluicegate_core::refusal::Refusal;
use sluicegate_core::seal::{self, SealKey, Secret};
use sluicegate_core::state::{Boot, Head, credential};

use crate::host::{self, LogLevel};
use crate::store::HostStore;

#[derive(Debug)]
pub struct Credentials {
    /// From the environment; without it no credential can be opened.
    key: Option<SealKey>,
    /// `Bearer ...` by credential id.
    opened: HashMap<u32, Secret>,
    /// Head's count when they were opened.
    seen: u64,
    count: u32,
}

impl Credentials {
    pub fn new() -> Self {
        let key = std::env::var(names::SEAL_KEY_ENV).ok().and_then(|hex| SealKey::parse(hex.as_bytes()).ok());
        Self { key, opened: HashMap::new(), seen: 0, count: 0 }
    }

    /// Forgets what was opened when anything has changed; each VM's root looks on its tick.
    pub fn refresh(&mut self, head: &Head) {
        if head.credentials != self.seen {
            self.opened.clear();
            self.seen = head.credentials;
        }
    }

    /// The `authorization` header for a credential; `None` for a provider that wants none.
    pub fn authorization(&mut self, id: u32) -> Result<Option<&[u8]>, Refusal> {
        if id == 0 {
            return Ok(None);
        }
        if !self.opened.contains_key(&id) {
            let secret = self.open(id).ok_or(Refusal::CredentialUnavailable)?;
            self.opened.insert(id, secret);
        }
        Ok(self.opened.get(&id).map(Secret::expose))
    }

    fn open(&mut self, id: u32) -> Option<Secret> {
        let Some(key) = &self.key else {
            host::log(
                LogLevel::Error,
                "sluicegate: no seal key in the environment: no provider credential can be opened",
            );
            return None;
        };
        if self.count == 0 {
            self.count = Boot::read(&HostStore).ok()??.sizes?.credentials;
        }
        let entry = credential::Entry::read(&HostStore, id, self.count).ok()??;
        if entry.sealed.is_empty() {
            return None;
        }
        let opened = seal::open(key, entry.stamp.era, id, entry.stamp.revision, &entry.sealed);
        let Ok(secret) = opened else {
            host::log(LogLevel::Error, &format!("sluicegate: credential {id} was sealed with another key"));
            return None;
        };
        Some(Secret::new([b"Bearer ", secret.expose()].concat()))
    }
}
