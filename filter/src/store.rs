//! Envoy's shared data as core wants it.

use sluicegate_core::state::{Cas, SharedData, StoreFault};

use crate::host::{self, Status};

#[derive(Clone, Copy, Debug)]
pub struct HostStore;

impl SharedData for HostStore {
    fn get(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, StoreFault> {
        host::shared_data(key).map_err(|Status(status)| StoreFault::Host(status))
    }

    fn set(&self, key: &[u8], value: &[u8], cas: Cas) -> Result<bool, StoreFault> {
        host::set_shared_data(key, value, cas.number()).map_err(|Status(status)| StoreFault::Host(status))
    }
}
