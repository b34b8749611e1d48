//! What a scan finds, and why it refuses.

use std::fmt;
use std::ops::Range;

use super::scan::MAX_DEPTH;

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
    pub(super) wanted: &'static [&'static str],
    pub(super) members: Vec<Option<Member>>,
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
