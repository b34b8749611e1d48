//! The encoded bytes, as far as they were asked for.

use std::io::{self, BufRead, Read};

/// Asked for at once: what one step has to work on at most, where it needs no more to begin.
pub(super) const PIECE: usize = 4 << 10;

/// Bytes that wait to be decoded. Reading on where there are none is `WouldBlock` until the end is known.
#[derive(Debug, Default)]
pub(super) struct Input {
    bytes: Vec<u8>,
    at: usize,
    taken: u64,
    ended: bool,
}

impl Input {
    /// Bytes that were asked for in all.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Asks for another piece.
    pub(super) fn feed(&mut self, more: &mut dyn FnMut(usize) -> Vec<u8>) {
        let piece = more(PIECE);
        self.ended |= piece.is_empty();
        self.taken = self.taken.saturating_add(piece.len() as u64);
        self.bytes.drain(..self.at.min(self.bytes.len()));
        self.at = 0;
        self.bytes.extend(piece);
    }

    /// Whether there are `count` bytes, asked for where they are missing.
    pub(super) fn has(&mut self, count: usize, more: &mut dyn FnMut(usize) -> Vec<u8>) -> bool {
        while self.peek().len() < count && !self.ended {
            self.feed(more);
        }
        self.peek().len() >= count
    }

    pub(super) fn peek(&self) -> &[u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }
}

impl BufRead for Input {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.peek().is_empty() && !self.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(self.peek())
    }

    fn consume(&mut self, count: usize) {
        self.at = self.at.saturating_add(count).min(self.bytes.len());
    }
}

impl Read for Input {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(to)?;
        self.consume(read);
        Ok(read)
    }
}
