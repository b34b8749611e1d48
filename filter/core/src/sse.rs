//! Server-sent events, split on bytes. Source: <https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream>
//!
//! Every byte that goes in comes out again in exactly one [`Piece`], in order, so what is not changed is forwarded as it came.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use memchr::memchr2;

/// An event with more bytes than this before its blank line passes as [`Piece::Opaque`].
pub const MAX_EVENT: usize = 1024 * 1024;

/// Memory kept for the next event that comes in parts; what a longer one took is given back.
const KEPT: usize = 4096;

/// A part of a stream.
#[derive(Debug)]
pub enum Piece<'a> {
    /// A whole event with the blank line that ends it; or a lone blank line.
    Event(Event<'a>),
    /// The LF of a CRLF whose CR ended the last piece. Whoever kept that piece keeps this, whoever dropped it drops this.
    Tail(&'a [u8]),
    /// A part of an event that is too long to be held.
    Opaque(&'a [u8]),
}

/// One event's bytes as they came.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    raw: &'a [u8],
}

/// Splits a stream into events. Holds at most [`MAX_EVENT`] bytes.
#[derive(Default)]
pub struct Splitter {
    /// The event begun in earlier chunks.
    held: Vec<u8>,
    /// The current line has bytes already.
    in_line: bool,
    /// The last byte was a CR: an LF now belongs to it.
    after_cr: bool,
    /// That CR ended a piece already given out.
    tail: bool,
    /// The current event is too long and passes unread.
    opaque: bool,
}

impl Splitter {
    /// Gives every piece that `chunk` completes to `each`, at once.
    pub fn push(&mut self, chunk: &[u8], mut each: impl FnMut(Piece<'_>)) {
        let mut start = 0;
        let mut at = 0;
        while let Some(rest) = chunk.get(at..).filter(|rest| !rest.is_empty()) {
            if std::mem::take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
                at += 1;
                if std::mem::take(&mut self.tail) {
                    each(Piece::Tail(chunk.get(start..at).unwrap_or_default()));
                    start = at;
                }
                continue;
            }
            self.tail = false;
            let Some(line) = memchr2(b'\n', b'\r', rest) else {
                self.in_line = true;
                break;
            };
            let blank = line == 0 && !self.in_line;
            let before = at + line;
            at = before + 1 + usize::from(rest.get(line..line + 2) == Some(b"\r\n"));
            self.after_cr = at == chunk.len() && rest.get(line..) == Some(b"\r");
            self.in_line = false;
            if blank {
                self.tail = self.after_cr;
                self.complete(chunk, start..before, at, &mut each);
                start = at;
            }
        }
        self.hold(chunk.get(start..).unwrap_or_default(), &mut each);
    }

    /// The stream has ended: gives the event that no blank line ended, if there is one.
    pub fn finish(self, each: impl FnOnce(Event<'_>)) {
        if !self.held.is_empty() {
            each(Event { raw: &self.held });
        }
    }

    /// Bytes held for an event that is not complete.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// What was given out ends with a whole event, nothing since.
    pub fn at_boundary(&self) -> bool {
        self.held.is_empty() && !self.opaque
    }

    /// An event ends: `lines` are its bytes of this chunk before the blank line, which ends at `end`.
    fn complete(&mut self, chunk: &[u8], lines: Range<usize>, end: usize, each: &mut impl FnMut(Piece<'_>)) {
        let too_long = self.held.len() + lines.len() > MAX_EVENT;
        let part = chunk.get(lines.start..end).unwrap_or_default();
        if std::mem::take(&mut self.opaque) || too_long {
            self.release(each);
            each(Piece::Opaque(part));
        } else if self.held.is_empty() {
            each(Piece::Event(Event { raw: part }));
        } else {
            self.held.extend_from_slice(part);
            each(Piece::Event(Event { raw: &self.held }));
            self.held.clear();
            self.held.shrink_to(KEPT);
        }
    }

    /// The chunk ended inside an event.
    fn hold(&mut self, part: &[u8], each: &mut impl FnMut(Piece<'_>)) {
        if part.is_empty() {
            return;
        }
        self.opaque |= self.held.len() + part.len() > MAX_EVENT;
        if self.opaque {
            self.release(each);
            each(Piece::Opaque(part));
        } else {
            self.held.extend_from_slice(part);
        }
    }

    /// Lets go of what was held, memory included: such events are rare.
    fn release(&mut self, each: &mut impl FnMut(Piece<'_>)) {
        let held = std::mem::take(&mut self.held);
        if !held.is_empty() {
            each(Piece::Opaque(&held));
        }
    }
}

impl<'a> Event<'a> {
    /// The bytes as they came, blank line included.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// The payload: the values of all `data` lines, joined by LF. `None` without such a line.
    pub fn data(&self) -> Option<Cow<'a, [u8]>> {
        let mut lines = self.values(b"data").map(|range| self.raw.get(range).unwrap_or_default());
        let first = lines.next()?;
        let Some(second) = lines.next() else { return Some(Cow::Borrowed(first)) };
        let mut joined = [first, b"\n", second].concat();
        for line in lines {
            joined.push(b'\n');
            joined.extend_from_slice(line);
        }
        Some(Cow::Owned(joined))
    }

    /// The value of the last `event` line.
    pub fn name(&self) -> Option<&'a [u8]> {
        self.raw.get(self.values(b"event").last()?)
    }

    /// Where a byte of the payload stands in [`Event::raw`]. The payload's end counts too.
    pub fn raw_offset(&self, mut payload: usize) -> Option<usize> {
        for line in self.values(b"data") {
            if payload <= line.len() {
                return Some(line.start + payload);
            }
            payload -= line.len() + 1;
        }
        None
    }

    /// Where the values of one field stand.
    fn values(&self, field: &'static [u8]) -> impl Iterator<Item = Range<usize>> + use<'a> {
        let raw = self.raw;
        lines(raw).filter_map(move |line| {
            let rest = raw.get(line.clone())?.strip_prefix(field)?;
            let skipped = match rest {
                [] => 0,
                [b':', b' ', ..] => 2,
                [b':', ..] => 1,
                _ => return None,
            };
            Some(line.start + field.len() + skipped..line.end)
        })
    }
}

/// The lines of an event without their ends, and without a byte order mark.
fn lines(raw: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut at = if raw.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    std::iter::from_fn(move || {
        let rest = raw.get(at..).filter(|rest| !rest.is_empty())?;
        let len = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = at..at + len;
        at = line.end + if rest.get(len..len + 2) == Some(b"\r\n") { 2 } else { 1 };
        Some(line)
    })
}

// What passes here is text of people: its size may be shown, nothing else.
impl fmt::Debug for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("len", &self.raw.len()).finish()
    }
}

impl fmt::Debug for Splitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Splitter").field("held", &self.held.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
