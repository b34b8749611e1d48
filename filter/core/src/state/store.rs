//! Envoy's shared data, as far as it is used.

/// The process-wide store. Implemented by the filter over host calls, by tests over a map.
pub trait SharedData {
    /// A value and its compare-and-set number; `None` where the key was never set.
    fn get(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, StoreFault>;
    /// `false` when the value is not (or no longer) what `cas` says.
    fn set(&self, key: &[u8], value: &[u8], cas: Cas) -> Result<bool, StoreFault>;
}

/// The condition of a write. There is no write without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cas {
    /// Nothing is there.
    Absent,
    /// The value read with this number is still there.
    Was(u32),
}

impl Cas {
    /// The host's number. 0 would mean "whatever is there"; a number no key has creates an absent key and fails on a
    /// present one, and the host's counter reaches this one only after 2^32 writes.
    pub fn number(self) -> u32 {
        match self {
            Self::Absent => u32::MAX,
            Self::Was(number) => number,
        }
    }
}

/// Why a step on the store did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFault {
    #[error("the host answered status {0}")]
    Host(u32),
    #[error("too many writers at once")]
    Contended,
}

/// Other writers are a handful of VMs; who loses this often is better off trying again at its next tick.
const TRIES: usize = 16;

/// Reads, decides, writes, until no one came between. `step` sees the present value and returns the new one, or `None`
/// when there is nothing to write. Returns whether something was written.
pub fn update<S: SharedData>(
    store: &S,
    key: &[u8],
    mut step: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
) -> Result<bool, StoreFault> {
    for _ in 0..TRIES {
        let present = store.get(key)?;
        let (value, cas) = match &present {
            Some((value, cas)) => (Some(value.as_slice()), Cas::Was(*cas)),
            None => (None, Cas::Absent),
        };
        match step(value) {
            None => return Ok(false),
            Some(new) if store.set(key, &new, cas)? => return Ok(true),
            Some(_) => {}
        }
    }
    Err(StoreFault::Contended)
}

/// Keys of the entries: a letter, and a number where there are several.
pub mod keys {
    pub const BOOT: &[u8] = b"b";
    pub const HEAD: &[u8] = b"h";
    pub const BLOCKED: &[u8] = b"o";

    pub fn subscriber(number: u32) -> [u8; 5] {
        numbered(b's', number)
    }
    pub fn seat(number: u32) -> [u8; 5] {
        numbered(b'v', number)
    }
    pub fn bucket(number: u32) -> [u8; 5] {
        numbered(b'k', number)
    }
    pub fn profile(number: u32) -> [u8; 5] {
        numbered(b'p', number)
    }
    pub fn credential(number: u32) -> [u8; 5] {
        numbered(b'c', number)
    }
    pub fn policy_part(number: u32) -> [u8; 5] {
        numbered(b'y', number)
    }

    fn numbered(letter: u8, number: u32) -> [u8; 5] {
        let [a, b, c, d] = number.to_le_bytes();
        [letter, a, b, c, d]
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::cell::RefCell;
    use std::collections::HashMap;

    use super::{Cas, SharedData, StoreFault};

    /// The host's store, as it was measured: one counter for all keys, which skips 0.
    #[derive(Debug, Default)]
    pub struct Map {
        entries: RefCell<HashMap<Vec<u8>, Entry>>,
        counter: RefCell<u32>,
    }

    type Entry = (Vec<u8>, u32);

    impl SharedData for Map {
        fn get(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, StoreFault> {
            Ok(self.entries.borrow().get(key).cloned())
        }

        fn set(&self, key: &[u8], value: &[u8], cas: Cas) -> Result<bool, StoreFault> {
            let mut entries = self.entries.borrow_mut();
            let fits = match (entries.get(key), cas) {
                (None, _) => true,
                (Some((_, there)), cas) => *there == cas.number(),
            };
            if fits {
                *self.counter.borrow_mut() += 1;
                entries.insert(key.to_vec(), (value.to_vec(), *self.counter.borrow()));
            }
            Ok(fits)
        }
    }
}
