//! A resumable tokenizer over one top-level JSON object, fed in windows of any size.
//!
//! It validates the grammar of RFC 8259 and keeps the byte spans of a few wanted top-level members, never the document.
//! It is laxer than a parser in three things, which are the reader's to judge: bytes inside strings need not be UTF-8,
//! `\u` escapes need not form surrogate pairs, and numbers may be of any size. It is stricter in two: the top level
//! is an object no deeper than [`MAX_DEPTH`], and a wanted member stands at most once.

mod members;

use super::scalar::{Progress, Scalar};
use super::scanned::{Kind, ScanError, ScanErrorKind, Scanned};
use super::text::{KeyText, text_len};
use members::Members;

/// Objects and arrays inside each other, the top-level object included.
pub const MAX_DEPTH: u32 = 128;

/// Raw bytes of a wanted value that are kept, unless the scanner is told otherwise.
pub const DEFAULT_CAP: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the top-level `{`.
    Start,
    /// After `{`: a key or `}`.
    FirstKey,
    /// After `,` in an object.
    NextKey,
    Colon,
    /// After `[`: a value or `]`.
    FirstElement,
    Value,
    AfterValue,
    Text,
    /// After a backslash.
    Escape,
    /// Inside `\u`: digits still to come.
    Hex(u8),
    Scalar(Scalar),
    /// After the top-level `}`.
    End,
}

/// The scanner; its size does not depend on the document's.
#[derive(Debug)]
pub struct Scanner {
    state: State,
    depth: u32,
    /// One bit per open level, the innermost lowest: 1 is an object.
    objects: u128,
    /// Bytes of earlier windows.
    base: usize,
    in_key: bool,
    hex: u16,
    members: Members,
    body_start: usize,
    failed: Option<ScanError>,
}

/// The position in the window after a step; `None` when the document is refused, which `failed` tells.
/// (A `Result` with the error in it would go through memory at each token.)
type Step = Option<usize>;

impl Scanner {
    /// Looks for these top-level members: at most a handful, in ASCII, of at most [`KeyText::MAX`] bytes.
    pub fn new(wanted: &'static [&'static str]) -> Self {
        Self::with_cap(wanted, DEFAULT_CAP)
    }

    /// Like [`Scanner::new`], keeping up to `cap` raw bytes of each wanted value.
    pub fn with_cap(wanted: &'static [&'static str], cap: usize) -> Self {
        debug_assert!(wanted.iter().all(|name| name.is_ascii() && name.len() <= KeyText::MAX));
        Self {
            state: State::Start,
            depth: 0,
            objects: 0,
            base: 0,
            in_key: false,
            hex: 0,
            members: Members::new(wanted, cap),
            body_start: 0,
            failed: None,
        }
    }

    /// Reads the next window. After an error every further call gives the same error.
    pub fn push(&mut self, window: &[u8]) -> Result<(), ScanError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut at = 0;
        while at < window.len() {
            match self.step(window, at) {
                Some(next) => at = next,
                None => break,
            }
        }
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.members.capture(self.base, window, window.len());
        self.base = self.base.saturating_add(window.len());
        Ok(())
    }

    /// The document has ended.
    pub fn finish(self) -> Result<Scanned, ScanError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.state != State::End {
            return Err(ScanError { offset: self.base, kind: ScanErrorKind::Truncated });
        }
        Ok(self.members.finish(self.body_start))
    }

    #[cold]
    fn refuse(&mut self, at: usize, kind: ScanErrorKind) -> Step {
        self.failed = Some(ScanError { offset: self.base.saturating_add(at), kind });
        None
    }

    /// One token or a part of one. Consumes at least a byte, except where a number meets what follows it.
    fn step(&mut self, window: &[u8], at: usize) -> Step {
        let rest = window.get(at..).unwrap_or_default();
        let Some(&byte) = rest.first() else { return Some(at) };
        match self.state {
            State::Text => return self.text(window, at),
            State::Escape => return self.escape(byte, at),
            State::Hex(left) => return self.hex_digit(byte, left, at),
            State::Scalar(scalar) => return self.scalar(scalar, window, at),
            _ => {}
        }
        if matches!(byte, b' ' | b'\n' | b'\t' | b'\r') {
            return Some(at + rest.iter().take_while(|b| matches!(b, b' ' | b'\n' | b'\t' | b'\r')).count());
        }
        match (self.state, byte) {
            (State::Start, b'{') => {
                self.body_start = self.base.saturating_add(at + 1);
                self.descend(true, at)
            }
            (State::Start, _) => self.refuse(at, ScanErrorKind::NotAnObject),
            (State::FirstKey | State::NextKey, b'"') => Some(self.key_starts(at)),
            (State::Colon, b':') => Some(self.then(State::Value, at)),
            (State::FirstKey, b'}') | (State::FirstElement, b']') => self.ascend(window, at),
            (State::FirstElement | State::Value, _) => self.value(byte, at),
            (State::AfterValue, b',') if self.in_object() => Some(self.then(State::NextKey, at)),
            (State::AfterValue, b',') => Some(self.then(State::Value, at)),
            (State::AfterValue, b'}') if self.in_object() => self.ascend(window, at),
            (State::AfterValue, b']') if !self.in_object() => self.ascend(window, at),
            (State::End, _) => self.refuse(at, ScanErrorKind::Trailing),
            _ => self.refuse(at, ScanErrorKind::Unexpected),
        }
    }

    fn then(&mut self, state: State, at: usize) -> usize {
        self.state = state;
        at + 1
    }

    fn in_object(&self) -> bool {
        self.objects & 1 == 1
    }

    fn descend(&mut self, object: bool, at: usize) -> Step {
        if self.depth == MAX_DEPTH {
            return self.refuse(at, ScanErrorKind::TooDeep);
        }
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(object);
        Some(self.then(if object { State::FirstKey } else { State::FirstElement }, at))
    }

    fn ascend(&mut self, window: &[u8], at: usize) -> Step {
        self.depth = self.depth.saturating_sub(1);
        self.objects >>= 1;
        if self.depth == 0 {
            return Some(self.then(State::End, at));
        }
        Some(self.value_ends(window, at + 1))
    }

    fn value(&mut self, byte: u8, at: usize) -> Step {
        let kind = match byte {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b'-' | b'0'..=b'9' => Kind::Number,
            b't' | b'f' => Kind::Bool,
            b'n' => Kind::Null,
            _ => return self.refuse(at, ScanErrorKind::Unexpected),
        };
        self.members.value_starts(self.base.saturating_add(at), kind);
        self.in_key = false;
        let state = match kind {
            Kind::Object => return self.descend(true, at),
            Kind::Array => return self.descend(false, at),
            Kind::String => State::Text,
            Kind::Number | Kind::Bool | Kind::Null => State::Scalar(Scalar::starting(byte)),
        };
        Some(self.then(state, at))
    }

    /// A value has ended before `end`. Gives `end` back.
    fn value_ends(&mut self, window: &[u8], end: usize) -> usize {
        self.state = State::AfterValue;
        if self.depth == 1 {
            self.members.value_ends(self.base, window, end);
        }
        end
    }

    fn key_starts(&mut self, at: usize) -> usize {
        self.in_key = true;
        if self.depth == 1 {
            self.members.key_starts(self.base.saturating_add(at));
        }
        self.then(State::Text, at)
    }

    /// The key's closing quote stands before `end`.
    fn key_ends(&mut self, end: usize) -> Step {
        self.state = State::Colon;
        if self.depth > 1 {
            return Some(end);
        }
        match self.members.key_ends(self.base.saturating_add(end)) {
            Ok(()) => Some(end),
            Err(kind) => self.refuse(end, kind),
        }
    }

    /// Inside a string: on to its end, to an escape, or to the end of the window.
    fn text(&mut self, window: &[u8], mut at: usize) -> Step {
        let top_key = self.in_key && self.depth == 1;
        let rest = window.get(at..).unwrap_or_default();
        let (text, rest) = rest.split_at_checked(text_len(rest, !top_key)).unwrap_or((rest, &[]));
        if top_key {
            self.members.key.push(text);
        }
        at += text.len();
        match rest.first() {
            None => Some(at),
            Some(b'"') if self.in_key => self.key_ends(at + 1),
            Some(b'"') => Some(self.value_ends(window, at + 1)),
            Some(b'\\') => Some(self.then(State::Escape, at)),
            Some(_) => self.refuse(at, ScanErrorKind::Control),
        }
    }

    /// The byte after a backslash.
    fn escape(&mut self, byte: u8, at: usize) -> Step {
        let decoded = match byte {
            b'"' | b'\\' | b'/' => byte,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                self.hex = 0;
                return Some(self.then(State::Hex(4), at));
            }
            _ => return self.refuse(at, ScanErrorKind::Escape),
        };
        if self.in_key && self.depth == 1 {
            self.members.key.push(&[decoded]);
        }
        Some(self.then(State::Text, at))
    }

    fn hex_digit(&mut self, byte: u8, left: u8, at: usize) -> Step {
        let Some(digit) = char::from(byte).to_digit(16) else { return self.refuse(at, ScanErrorKind::Escape) };
        self.hex = self.hex << 4 | u16::try_from(digit).unwrap_or_default();
        if left > 1 {
            return Some(self.then(State::Hex(left - 1), at));
        }
        if self.in_key && self.depth == 1 {
            self.members.key.push_unit(self.hex);
        }
        Some(self.then(State::Text, at))
    }

    fn scalar(&mut self, scalar: Scalar, window: &[u8], at: usize) -> Step {
        let (read, progress) = scalar.read(window.get(at..).unwrap_or_default());
        match progress {
            Progress::More(scalar) => self.state = State::Scalar(scalar),
            Progress::Ended => return Some(self.value_ends(window, at + read)),
            Progress::Broken => return self.refuse(at + read, scalar.fault()),
        }
        Some(at + read)
    }
}

#[cfg(test)]
mod tests;
