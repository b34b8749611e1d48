//! Compressed bodies on their way: how much of a worker's time and memory they may have.
//!
//! Decoding and reading the largest body takes the better part of a second, and a hundred of them can be whole in the same
//! moment; a worker that does nothing else for ten is taken for dead. So a small one is decoded at once, and the others one
//! after the other, a little on each tick.

use std::collections::{HashMap, VecDeque};

/// A body that is decoded within this is decoded where it ends, if nobody waits before it.
const AT_ONCE_NS: u64 = 4_000_000;
/// Of each 100 ms so much goes to bodies that are decoded at once.
const WINDOW_NS: u64 = 100_000_000;
const WINDOW_SHARE_NS: u64 = 20_000_000;
/// What a tick gives to those that wait.
pub const SLICE_NS: u64 = 8_000_000;
/// More cannot be decoded before their patience ends.
const MAX_WAITING: usize = 256;
/// What decoded bodies may take together, as long as their requests run. Plain ones Envoy bounds while they arrive; these come
/// out of next to nothing.
const MAX_HELD_BYTES: u64 = 256 << 20;

#[derive(Debug, Default)]
pub struct Decodings {
    /// By context; the first is being worked on.
    waiting: VecDeque<u32>,
    window: u64,
    spent: u64,
    held: HashMap<u32, u64>,
    held_bytes: u64,
}

impl Decodings {
    /// Until when a body may be decoded right away; `None` where it has to wait.
    pub fn at_once(&mut self, now: u64) -> Option<u64> {
        if now.saturating_sub(self.window) >= WINDOW_NS {
            (self.window, self.spent) = (now, 0);
        }
        (self.waiting.is_empty() && self.spent < WINDOW_SHARE_NS).then(|| now.saturating_add(AT_ONCE_NS))
    }

    pub fn spend(&mut self, ns: u64) {
        self.spent = self.spent.saturating_add(ns);
    }

    /// `false` where too many wait already.
    #[must_use]
    pub fn wait(&mut self, context: u32) -> bool {
        if self.waiting.len() >= MAX_WAITING {
            return false;
        }
        self.waiting.push_back(context);
        true
    }

    /// Whose turn it is.
    pub fn first(&self) -> Option<u32> {
        self.waiting.front().copied()
    }

    /// `bytes` are kept until the request has ended; `false` where that is too much.
    #[must_use]
    pub fn hold(&mut self, context: u32, bytes: u64) -> bool {
        if self.held_bytes.saturating_add(bytes) > MAX_HELD_BYTES {
            return false;
        }
        self.held_bytes += bytes;
        self.held.insert(context, bytes);
        true
    }

    /// It is decoded, or not to be any more.
    pub fn done(&mut self, context: u32) {
        self.waiting.retain(|waiting| *waiting != context);
    }

    /// The request has ended.
    pub fn forget(&mut self, context: u32) {
        self.done(context);
        self.held_bytes -= self.held.remove(&context).unwrap_or(0);
    }
}
