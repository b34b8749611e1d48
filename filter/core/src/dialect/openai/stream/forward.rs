//! What of a chunk goes on to the client.

use std::borrow::Cow;
use std::ops::Range;

use crate::sse::Event;

/// What to send the client in place of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forward<'a> {
    /// The chunk as it came.
    Unchanged,
    /// These bytes; none when the chunk completes no event, or only one that was not asked for.
    Replace(Cow<'a, [u8]>),
}

/// What becomes of an event.
pub(super) enum Fate {
    Keep,
    Drop,
    /// Kept without these raw bytes.
    Cut(Range<usize>),
}

impl Fate {
    /// What is left of an event, in two parts.
    pub(super) fn parts<'a>(&self, raw: &'a [u8]) -> [&'a [u8]; 2] {
        match self {
            Self::Keep => [raw, &[]],
            Self::Drop => [&[], &[]],
            Self::Cut(range) => [raw.get(..range.start).unwrap_or(raw), raw.get(range.end..).unwrap_or_default()],
        }
    }
}

/// Collects what is forwarded of one chunk, and copies only when it is not a prefix of the chunk itself.
pub(super) struct Output<'a> {
    chunk: &'a [u8],
    /// Bytes of the chunk that are forwarded as they stand, while nothing else is.
    kept: usize,
    copied: Option<Vec<u8>>,
}

impl<'a> Output<'a> {
    pub(super) fn new(chunk: &'a [u8], held_before: bool) -> Self {
        Self { chunk, kept: 0, copied: held_before.then(Vec::new) }
    }

    pub(super) fn event(&mut self, event: Event<'_>, fate: &Fate) {
        match fate {
            Fate::Keep => self.keep(event.raw()),
            Fate::Drop => self.skip(event.raw()),
            Fate::Cut(_) => {
                let copy = self.copy();
                fate.parts(event.raw()).iter().for_each(|part| copy.extend_from_slice(part));
            }
        }
    }

    pub(super) fn keep(&mut self, raw: &[u8]) {
        match &mut self.copied {
            Some(copied) => copied.extend_from_slice(raw),
            None => self.kept += raw.len(),
        }
    }

    pub(super) fn skip(&mut self, raw: &[u8]) {
        if !raw.is_empty() {
            self.copy();
        }
    }

    fn copy(&mut self) -> &mut Vec<u8> {
        let kept = self.chunk.get(..self.kept).unwrap_or_default();
        self.copied.get_or_insert_with(|| {
            let mut copy = Vec::with_capacity(self.chunk.len());
            copy.extend_from_slice(kept);
            copy
        })
    }

    pub(super) fn finish(self) -> Forward<'a> {
        match self.copied {
            Some(copied) if copied == self.chunk => Forward::Unchanged,
            Some(copied) => Forward::Replace(Cow::Owned(copied)),
            None if self.kept == self.chunk.len() => Forward::Unchanged,
            None => Forward::Replace(Cow::Borrowed(self.chunk.get(..self.kept).unwrap_or_default())),
        }
    }
}
