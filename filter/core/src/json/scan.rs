//! A resumable tokenizer over one top-level JSON object, fed in windows of any size.
//!
//! It validates the grammar of RFC 8259 and keeps the byte spans of a few wanted top-level members, never the document.
//! It is laxer than a parser in three things, which are the reader's to judge: bytes inside strings need not be UTF-8,
//! `\u` escapes need not form surrogate pairs, and numbers may be of any size. It is stricter in two: the top level
//! is an object no deeper than [`MAX_DEPTH`], and a wanted member stands at most once.

use std::fmt;
use std::ops::Range;

use super::text::{KeyText, plain_len};

/// Objects and arrays inside each other, the top-level object included.
pub const MAX_DEPTH: u32 = 128;

/// Raw bytes of a wanted value that are kept, unless the scanner is told otherwise.
pub const DEFAULT_CAP: usize = 512;

/// What a value is, known from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

/// A wanted top-level member. Offsets count from the body's first byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The key with its quotes.
    pub key: Range<usize>,
    pub value: Range<usize>,
    pub kind: Kind,
    /// The value's bytes as they stand; `None` when there are more than the scanner's cap.
    pub raw: Option<Vec<u8>>,
}

/// What a whole document was found to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scanned {
    wanted: &'static [&'static str],
    members: Vec<Option<Member>>,
    /// The offset just after the top-level `{`.
    pub body_start: usize,
    /// The object has no members at all.
    pub empty: bool,
}

impl Scanned {
    /// The member of that name, if it is a wanted one and present.
    pub fn get(&self, name: &str) -> Option<&Member> {
        let index = self.wanted.iter().position(|wanted| *wanted == name)?;
        self.members.get(index)?.as_ref()
    }
}

/// Where and why a document was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} at byte {offset}")]
pub struct ScanError {
    /// From the body's first byte.
    pub offset: usize,
    pub kind: ScanErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanErrorKind {
    #[error("something other than `{{`")]
    NotAnObject,
    #[error("an unexpected character")]
    Unexpected,
    #[error("a malformed number")]
    Number,
    #[error("a malformed escape")]
    Escape,
    #[error("an unescaped control character in a string")]
    Control,
    #[error("nesting deeper than {MAX_DEPTH}")]
    TooDeep,
    #[error("the end of the body inside the object")]
    Truncated,
    #[error("something after the object's end")]
    Trailing,
    /// A wanted member that stands twice: which one counts is a matter of the reader.
    #[error("a second `{0}`")]
    Duplicate(&'static str),
    /// A key that readers which ignore case (Go's `encoding/json`) take for a wanted one.
    #[error("a key that differs from `{0}` only in case")]
    Spelling(&'static str),
}

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
    Number(Number),
    /// The bytes of `true`, `false` or `null` still to come.
    Literal(&'static [u8]),
    /// After the top-level `}`.
    End,
}

/// How far a number has come; the names say what was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

/// A wanted member whose value is being read.
#[derive(Debug)]
struct Open {
    index: usize,
    key: Range<usize>,
    start: usize,
    kind: Kind,
    raw: Option<Vec<u8>>,
}

/// The scanner; its size does not depend on the document's.
#[derive(Debug)]
pub struct Scanner {
    wanted: &'static [&'static str],
    cap: usize,
    state: State,
    depth: u32,
    /// One bit per open level, the innermost lowest: 1 is an object.
    objects: u128,
    /// Bytes of earlier windows.
    base: usize,
    in_key: bool,
    /// The text of the top-level key being read.
    key: KeyText,
    key_start: usize,
    hex: u16,
    /// The wanted member whose key was read last.
    matched: Option<(usize, Range<usize>)>,
    open: Option<Open>,
    members: Vec<Option<Member>>,
    body_start: usize,
    empty: bool,
    failed: Option<ScanError>,
}

/// The position in the window after a step, or the position and kind of an error.
type Step = Result<usize, (usize, ScanErrorKind)>;

impl Scanner {
    /// Looks for these top-level members: at most a handful, in ASCII, of at most [`KeyText::MAX`] bytes.
    pub fn new(wanted: &'static [&'static str]) -> Self {
        Self::with_cap(wanted, DEFAULT_CAP)
    }

    /// Like [`Scanner::new`], keeping up to `cap` raw bytes of each wanted value.
    pub fn with_cap(wanted: &'static [&'static str], cap: usize) -> Self {
        debug_assert!(wanted.iter().all(|name| name.is_ascii() && name.len() <= KeyText::MAX));
        Self {
            wanted,
            cap,
            state: State::Start,
            depth: 0,
            objects: 0,
            base: 0,
            in_key: false,
            key: KeyText::default(),
            key_start: 0,
            hex: 0,
            matched: None,
            open: None,
            members: wanted.iter().map(|_| None).collect(),
            body_start: 0,
            empty: true,
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
                Ok(next) => at = next,
                Err((at, kind)) => return Err(self.fail(self.base.saturating_add(at), kind)),
            }
        }
        self.capture(window, window.len());
        self.base = self.base.saturating_add(window.len());
        Ok(())
    }

    /// The document has ended.
    pub fn finish(mut self) -> Result<Scanned, ScanError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        if self.state != State::End {
            return Err(self.fail(self.base, ScanErrorKind::Truncated));
        }
        Ok(Scanned { wanted: self.wanted, members: self.members, body_start: self.body_start, empty: self.empty })
    }

    fn fail(&mut self, offset: usize, kind: ScanErrorKind) -> ScanError {
        let error = ScanError { offset, kind };
        self.failed = Some(error.clone());
        error
    }

    /// One token or a part of one. Consumes at least a byte, except where a number meets what follows it.
    fn step(&mut self, window: &[u8], at: usize) -> Step {
        let rest = window.get(at..).unwrap_or_default();
        let Some(&byte) = rest.first() else { return Ok(at) };
        match self.state {
            State::Text => return self.text(window, at),
            State::Escape => return self.escape(byte, at),
            State::Hex(left) => return self.hex_digit(byte, left, at),
            State::Number(number) => return self.number(number, window, at),
            State::Literal(left) => return self.literal(left, window, at),
            _ => {}
        }
        let space = rest.iter().take_while(|b| matches!(b, b' ' | b'\n' | b'\t' | b'\r')).count();
        if space > 0 {
            return Ok(at + space);
        }
        match (self.state, byte) {
            (State::Start, b'{') => {
                self.body_start = self.base.saturating_add(at + 1);
                self.descend(true, at)
            }
            (State::Start, _) => Err((at, ScanErrorKind::NotAnObject)),
            (State::FirstKey | State::NextKey, b'"') => Ok(self.key_starts(at)),
            (State::Colon, b':') => Ok(self.then(State::Value, at)),
            (State::FirstKey, b'}') | (State::FirstElement, b']') => self.ascend(window, at),
            (State::FirstElement | State::Value, _) => self.value(byte, at),
            (State::AfterValue, b',') if self.in_object() => Ok(self.then(State::NextKey, at)),
            (State::AfterValue, b',') => Ok(self.then(State::Value, at)),
            (State::AfterValue, b'}') if self.in_object() => self.ascend(window, at),
            (State::AfterValue, b']') if !self.in_object() => self.ascend(window, at),
            (State::End, _) => Err((at, ScanErrorKind::Trailing)),
            _ => Err((at, ScanErrorKind::Unexpected)),
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
            return Err((at, ScanErrorKind::TooDeep));
        }
        self.depth += 1;
        self.objects = self.objects << 1 | u128::from(object);
        Ok(self.then(if object { State::FirstKey } else { State::FirstElement }, at))
    }

    fn ascend(&mut self, window: &[u8], at: usize) -> Step {
        self.depth = self.depth.saturating_sub(1);
        self.objects >>= 1;
        if self.depth == 0 {
            return Ok(self.then(State::End, at));
        }
        Ok(self.value_ends(window, at + 1))
    }

    fn value(&mut self, byte: u8, at: usize) -> Step {
        let kind = match byte {
            b'{' => Kind::Object,
            b'[' => Kind::Array,
            b'"' => Kind::String,
            b'-' | b'0'..=b'9' => Kind::Number,
            b't' | b'f' => Kind::Bool,
            b'n' => Kind::Null,
            _ => return Err((at, ScanErrorKind::Unexpected)),
        };
        if let Some((index, key)) = self.matched.take() {
            self.open = Some(Open { index, key, start: self.base.saturating_add(at), kind, raw: Some(Vec::new()) });
        }
        let state = match byte {
            b'{' => return self.descend(true, at),
            b'[' => return self.descend(false, at),
            b'"' => State::Text,
            b'-' => State::Number(Number::Minus),
            b'0' => State::Number(Number::Zero),
            b't' => State::Literal(b"rue"),
            b'f' => State::Literal(b"alse"),
            b'n' => State::Literal(b"ull"),
            _ => State::Number(Number::Integer),
        };
        self.in_key = false;
        Ok(self.then(state, at))
    }

    /// A value has ended before `end`. Gives `end` back.
    fn value_ends(&mut self, window: &[u8], end: usize) -> usize {
        self.state = State::AfterValue;
        if self.depth == 1 && self.open.is_some() {
            self.capture(window, end);
            if let Some(open) = self.open.take() {
                let value = open.start..self.base.saturating_add(end);
                let member = Member { key: open.key, value, kind: open.kind, raw: open.raw };
                if let Some(slot) = self.members.get_mut(open.index) {
                    *slot = Some(member);
                }
            }
        }
        end
    }

    /// Adds the open value's bytes of this window up to `end` to what is kept of it.
    fn capture(&mut self, window: &[u8], end: usize) {
        let Some(open) = &mut self.open else { return };
        let Some(raw) = &mut open.raw else { return };
        let from = open.start.saturating_sub(self.base);
        let part = window.get(from..end).unwrap_or_default();
        if raw.len() + part.len() > self.cap {
            open.raw = None;
        } else {
            raw.extend_from_slice(part);
        }
    }

    fn key_starts(&mut self, at: usize) -> usize {
        self.in_key = true;
        if self.depth == 1 {
            self.empty = false;
            self.key = KeyText::default();
            self.key_start = self.base.saturating_add(at);
        }
        self.then(State::Text, at)
    }

    /// The key's closing quote stands before `end`.
    fn key_ends(&mut self, end: usize) -> Step {
        self.state = State::Colon;
        if self.depth > 1 {
            return Ok(end);
        }
        let fail = |kind| Err((end, kind));
        for (index, name) in self.wanted.iter().enumerate() {
            if self.key.is(name) {
                if self.members.get(index).is_some_and(Option::is_some) {
                    return fail(ScanErrorKind::Duplicate(name));
                }
                self.matched = Some((index, self.key_start..self.base.saturating_add(end)));
                return Ok(end);
            }
            if self.key.folds_to(name) {
                return fail(ScanErrorKind::Spelling(name));
            }
        }
        Ok(end)
    }

    /// Inside a string: on to its end, or to the end of the window.
    fn text(&mut self, window: &[u8], mut at: usize) -> Step {
        let top_key = self.in_key && self.depth == 1;
        loop {
            let rest = window.get(at..).unwrap_or_default();
            let (plain, rest) = rest.split_at_checked(plain_len(rest)).unwrap_or((rest, &[]));
            if top_key {
                self.key.push(plain);
            }
            at += plain.len();
            match rest {
                [] => return Ok(at),
                [b'"', ..] if self.in_key => return self.key_ends(at + 1),
                [b'"', ..] => return Ok(self.value_ends(window, at + 1)),
                // The common escapes without leaving the loop: code is full of them.
                [b'\\', b'n' | b'"' | b'\\' | b't', ..] if !top_key => at += 2,
                [b'\\', ..] => return Ok(self.then(State::Escape, at)),
                _ => return Err((at, ScanErrorKind::Control)),
            }
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
                return Ok(self.then(State::Hex(4), at));
            }
            _ => return Err((at, ScanErrorKind::Escape)),
        };
        if self.in_key && self.depth == 1 {
            self.key.push(&[decoded]);
        }
        Ok(self.then(State::Text, at))
    }

    fn hex_digit(&mut self, byte: u8, left: u8, at: usize) -> Step {
        let Some(digit) = char::from(byte).to_digit(16) else { return Err((at, ScanErrorKind::Escape)) };
        self.hex = self.hex << 4 | u16::try_from(digit).unwrap_or_default();
        if left > 1 {
            return Ok(self.then(State::Hex(left - 1), at));
        }
        if self.in_key && self.depth == 1 {
            self.key.push_unit(self.hex);
        }
        Ok(self.then(State::Text, at))
    }

    fn number(&mut self, mut number: Number, window: &[u8], mut at: usize) -> Step {
        use Number::{Exponent, Fraction, Integer, Minus, Point, Power, Sign, Zero};
        while let Some(&byte) = window.get(at) {
            number = match (number, byte) {
                (Minus, b'0') => Zero,
                (Minus | Integer, b'0'..=b'9') => Integer,
                (Zero | Integer, b'.') => Point,
                (Point | Fraction, b'0'..=b'9') => Fraction,
                (Zero | Integer | Fraction, b'e' | b'E') => Exponent,
                (Exponent, b'+' | b'-') => Sign,
                (Exponent | Sign | Power, b'0'..=b'9') => Power,
                (Zero | Integer | Fraction | Power, _) => return Ok(self.value_ends(window, at)),
                (Minus | Point | Exponent | Sign, _) => return Err((at, ScanErrorKind::Number)),
            };
            at += 1;
        }
        self.state = State::Number(number);
        Ok(at)
    }

    fn literal(&mut self, left: &'static [u8], window: &[u8], at: usize) -> Step {
        let rest = window.get(at..).unwrap_or_default();
        let same = left.iter().zip(rest).take_while(|(a, b)| a == b).count();
        if same == left.len() {
            return Ok(self.value_ends(window, at + same));
        }
        if same < rest.len() {
            return Err((at + same, ScanErrorKind::Unexpected));
        }
        self.state = State::Literal(left.get(same..).unwrap_or_default());
        Ok(at + same)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Number => "a number",
            Self::Bool => "a boolean",
            Self::Null => "null",
        })
    }
}
