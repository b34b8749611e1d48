//! The host's store, with traps and other VMs between any two calls.

use std::cell::{Cell, RefCell};

use crate::state::store::testing::Map;
use crate::state::store::{Cas, SharedData, StoreFault};

#[derive(Default)]
pub struct Store {
    map: Map,
    /// Writes until the VM that runs traps.
    writes_left: Cell<Option<u32>>,
    /// Calls until another VM gets its turn, and what it does then.
    interrupt: RefCell<Option<Interrupt>>,
}

type Interrupt = (u32, Box<dyn FnOnce(&Store)>);

impl Store {
    /// Runs `vm`, which traps at its write number `writes`, counted from 0.
    pub fn trapping<T>(&self, writes: u32, vm: impl FnOnce() -> T) -> T {
        self.writes_left.set(Some(writes));
        let result = vm();
        self.writes_left.set(None);
        result
    }

    /// Runs `vm`, and `other` in the middle of it: before its call number `calls`, or after all of them.
    pub fn interrupted<T>(&self, calls: u32, other: impl FnOnce(&Store) + 'static, vm: impl FnOnce() -> T) -> T {
        self.interrupt.replace(Some((calls, Box::new(other))));
        let result = vm();
        if let Some((_, other)) = self.interrupt.take() {
            other(self);
        }
        result
    }

    fn call(&self) {
        let due = self.interrupt.borrow_mut().take_if(|(calls, _)| *calls == 0);
        if let Some((_, other)) = due {
            other(self);
        }
        if let Some((calls, _)) = self.interrupt.borrow_mut().as_mut() {
            *calls -= 1;
        }
    }
}

impl SharedData for Store {
    fn get(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, StoreFault> {
        self.call();
        self.map.get(key)
    }

    fn set(&self, key: &[u8], value: &[u8], cas: Cas) -> Result<bool, StoreFault> {
        self.call();
        match self.writes_left.get() {
            Some(0) => return Err(StoreFault::Host(0)),
            left => self.writes_left.set(left.map(|n| n - 1)),
        }
        self.map.set(key, value, cas)
    }
}

/// A store whose bucket was read before everything else: what a reader would see that began with it.
pub struct Early<'a> {
    store: &'a Store,
    key: [u8; 5],
    value: Option<(Vec<u8>, u32)>,
}

impl<'a> Early<'a> {
    pub fn new(store: &'a Store, key: [u8; 5]) -> Self {
        Self { store, key, value: store.get(&key).unwrap() }
    }
}

impl SharedData for Early<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<(Vec<u8>, u32)>, StoreFault> {
        if key == self.key { Ok(self.value.clone()) } else { self.store.get(key) }
    }

    fn set(&self, key: &[u8], value: &[u8], cas: Cas) -> Result<bool, StoreFault> {
        self.store.set(key, value, cas)
    }
}
