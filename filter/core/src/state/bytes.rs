//! Little-endian fields of shared-data values.

use super::{LAYOUT, Stamp};

/// Writes a value, layout first.
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub fn new(capacity: usize) -> Self {
        let mut bytes = Vec::with_capacity(capacity + 1);
        bytes.push(LAYOUT);
        Self(bytes)
    }

    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn i64(mut self, value: i64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn stamp(self, value: Stamp) -> Self {
        self.u64(value.era).u64(value.revision)
    }

    pub fn bytes(mut self, value: &[u8]) -> Vec<u8> {
        self.0.extend(value);
        self.0
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Reads a value; every read is `None` past its end.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// `None` where the layout is another.
    pub fn new(value: &'a [u8]) -> Option<Self> {
        let (layout, rest) = value.split_first()?;
        (*layout == LAYOUT).then_some(Self(rest))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }

    pub fn stamp(&mut self) -> Option<Stamp> {
        Some(Stamp { era: self.u64()?, revision: self.u64()? })
    }

    pub fn rest(self) -> &'a [u8] {
        self.0
    }
}
