//! The wanted top-level members, as the scanner comes upon them. Positions are those in the document.

use std::ops::Range;

use super::super::scanned::{Kind, Member, ScanErrorKind, Scanned};
use super::super::text::KeyText;

/// A wanted member whose value is being read.
#[derive(Debug)]
struct Open {
    index: usize,
    key: Range<usize>,
    start: usize,
    kind: Kind,
    raw: Option<Vec<u8>>,
}

/// What was found of the wanted members.
#[derive(Debug)]
pub(super) struct Members {
    wanted: &'static [&'static str],
    cap: usize,
    /// The text of the top-level key being read.
    pub(super) key: KeyText,
    key_start: usize,
    /// The wanted member whose key was read last.
    matched: Option<(usize, Range<usize>)>,
    open: Option<Open>,
    found: Vec<Option<Member>>,
    /// No key was read.
    empty: bool,
}

impl Members {
    pub(super) fn new(wanted: &'static [&'static str], cap: usize) -> Self {
        Self {
            wanted,
            cap,
            key: KeyText::default(),
            key_start: 0,
            matched: None,
            open: None,
            found: wanted.iter().map(|_| None).collect(),
            empty: true,
        }
    }

    pub(super) fn finish(self, body_start: usize) -> Scanned {
        Scanned { wanted: self.wanted, members: self.found, body_start, empty: self.empty }
    }

    /// At the opening quote of a top-level key.
    pub(super) fn key_starts(&mut self, at: usize) {
        self.empty = false;
        self.key = KeyText::default();
        self.key_start = at;
    }

    /// The top-level key's closing quote stands before `end`.
    pub(super) fn key_ends(&mut self, end: usize) -> Result<(), ScanErrorKind> {
        for (index, name) in self.wanted.iter().enumerate() {
            if self.key.is(name) {
                if self.found.get(index).is_some_and(Option::is_some) {
                    return Err(ScanErrorKind::Duplicate(name));
                }
                self.matched = Some((index, self.key_start..end));
                return Ok(());
            }
            if self.key.folds_to(name) {
                return Err(ScanErrorKind::Spelling(name));
            }
        }
        Ok(())
    }

    /// At a value's first byte: a wanted one, if its key was.
    pub(super) fn value_starts(&mut self, at: usize, kind: Kind) {
        if let Some((index, key)) = self.matched.take() {
            self.open = Some(Open { index, key, start: at, kind, raw: Some(Vec::new()) });
        }
    }

    /// A top-level value has ended before `end` of the window, which begins at `base`.
    pub(super) fn value_ends(&mut self, base: usize, window: &[u8], end: usize) {
        self.capture(base, window, end);
        let Some(open) = self.open.take() else { return };
        let value = open.start..base.saturating_add(end);
        let member = Member { key: open.key, value, kind: open.kind, raw: open.raw };
        if let Some(slot) = self.found.get_mut(open.index) {
            *slot = Some(member);
        }
    }

    /// Adds the open value's bytes of this window up to `end` to what is kept of it.
    pub(super) fn capture(&mut self, base: usize, window: &[u8], end: usize) {
        let Some(open) = &mut self.open else { return };
        let Some(raw) = &mut open.raw else { return };
        let from = open.start.saturating_sub(base);
        let part = window.get(from..end).unwrap_or_default();
        if raw.len() + part.len() > self.cap {
            open.raw = None;
        } else {
            raw.extend_from_slice(part);
        }
    }
}
