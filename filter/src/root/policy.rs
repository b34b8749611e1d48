//! The policy that a VM works by: compiled on a tick from the store, or when a message brings it.

use prost::Message as _;

use sluicegate_core::policy::Policy;
use sluicegate_core::proto::dataplane as wire;
use sluicegate_core::proto::policy::Snapshot;
use sluicegate_core::state::{Head, Session, Stamp, StoreFault, policy_parts};

use crate::host::{self, LogLevel};
use crate::store::HostStore;
use crate::vm::Shared;

/// Which policy of the store this VM works by, and which it cannot.
#[derive(Debug, Default)]
pub struct InForce {
    stamp: Stamp,
    /// One that did not compile here: not to be tried again.
    bad: Stamp,
}

impl InForce {
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Compiles the store's policy if this VM does not work by it yet.
    pub fn load(&mut self, head: &Head, shared: &mut Shared) -> Result<(), StoreFault> {
        if head.policy <= self.stamp || head.policy == self.bad {
            return Ok(());
        }
        let Some(bytes) = policy_parts::read(&HostStore, head.policy)? else { return Ok(()) };
        match compile(&bytes, head.policy.revision) {
            Ok(policy) => self.install(head.policy, policy, shared),
            // The subscriber compiled it before it wrote it, so this VM's code is older than the subscriber's.
            Err((field, message)) => {
                self.bad = head.policy;
                host::log(LogLevel::Error, &format!("sluicegate: policy {}: {field}: {message}", head.policy.revision));
            }
        }
        Ok(())
    }

    /// A policy is kept only if it compiles; if not, the old one stays and the control plane is told which field is wrong.
    pub fn judge(
        &mut self,
        stamp: Stamp,
        snapshot: &[u8],
        shared: &mut Shared,
    ) -> Result<wire::PolicyVerdict, StoreFault> {
        let verdict = wire::PolicyVerdict { era: stamp.era, revision: stamp.revision, ..Default::default() };
        match compile(snapshot, stamp.revision) {
            Ok(policy) => {
                Session::keep_policy(&HostStore, stamp, snapshot)?;
                if stamp > self.stamp {
                    self.install(stamp, policy, shared);
                }
                Ok(wire::PolicyVerdict { accepted: true, ..verdict })
            }
            Err((field, message)) => {
                host::log(
                    LogLevel::Error,
                    &format!("sluicegate: policy {} refused: {field}: {message}", stamp.revision),
                );
                Ok(wire::PolicyVerdict { field, message, ..verdict })
            }
        }
    }

    fn install(&mut self, stamp: Stamp, policy: Policy, shared: &mut Shared) {
        self.stamp = stamp;
        shared.install(policy);
    }
}

/// Where it fails: the field and what is wrong with it.
fn compile(snapshot: &[u8], revision: u64) -> Result<Policy, (String, String)> {
    let snapshot = Snapshot::decode(snapshot).map_err(|e| ("snapshot".to_owned(), e.to_string()))?;
    Policy::compile(&snapshot, revision).map_err(|e| (e.field, e.message))
}
