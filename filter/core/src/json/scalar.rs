//! Numbers and literals, read in parts.

use super::scanned::ScanErrorKind;

/// A number or a literal that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scalar {
    Number(Number),
    /// With that many bytes read.
    Literal(Literal, u8),
}

/// How far a number has come; the names say what was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Minus,
    Zero,
    Integer,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Literal {
    True,
    False,
    Null,
}

/// What became of a scalar, beside the number of bytes it took.
pub(super) enum Progress {
    /// The window ended first.
    More(Scalar),
    Ended,
    /// The next byte cannot be.
    Broken,
}

impl Scalar {
    /// A scalar whose first byte has been read and is one of a number's or a literal's.
    pub(super) fn starting(byte: u8) -> Self {
        match byte {
            b't' => Self::Literal(Literal::True, 1),
            b'f' => Self::Literal(Literal::False, 1),
            b'n' => Self::Literal(Literal::Null, 1),
            b'-' => Self::Number(Number::Minus),
            b'0' => Self::Number(Number::Zero),
            _ => Self::Number(Number::Integer),
        }
    }

    /// Reads on.
    pub(super) fn read(self, bytes: &[u8]) -> (usize, Progress) {
        match self {
            Self::Number(number) => number.read(bytes),
            Self::Literal(literal, read) => literal.read(read, bytes),
        }
    }

    /// What [`Progress::Broken`] means.
    pub(super) fn fault(self) -> ScanErrorKind {
        match self {
            Self::Number(_) => ScanErrorKind::Number,
            Self::Literal(..) => ScanErrorKind::Unexpected,
        }
    }
}

impl Number {
    fn read(mut self, bytes: &[u8]) -> (usize, Progress) {
        use Number::{Exponent, Fraction, Integer, Minus, Point, Power, Sign, Zero};
        let mut at = 0;
        while let Some(rest @ [byte, ..]) = bytes.get(at..) {
            self = match (self, byte) {
                (Integer | Fraction | Power, b'0'..=b'9') => {
                    at += rest.iter().take_while(|b| b.is_ascii_digit()).count();
                    continue;
                }
                (Minus, b'0') => Zero,
                (Minus, b'1'..=b'9') => Integer,
                (Zero | Integer, b'.') => Point,
                (Point, b'0'..=b'9') => Fraction,
                (Zero | Integer | Fraction, b'e' | b'E') => Exponent,
                (Exponent, b'+' | b'-') => Sign,
                (Exponent | Sign, b'0'..=b'9') => Power,
                (Zero | Integer | Fraction | Power, _) => return (at, Progress::Ended),
                (Minus | Point | Exponent | Sign, _) => return (at, Progress::Broken),
            };
            at += 1;
        }
        (at, Progress::More(Scalar::Number(self)))
    }
}

impl Literal {
    fn read(self, mut read: u8, bytes: &[u8]) -> (usize, Progress) {
        let word: &[u8] = match self {
            Self::True => b"true",
            Self::False => b"false",
            Self::Null => b"null",
        };
        let mut at = 0;
        while let Some(expected) = word.get(usize::from(read)) {
            match bytes.get(at) {
                Some(byte) if byte == expected => (read, at) = (read + 1, at + 1),
                Some(_) => return (at, Progress::Broken),
                None => return (at, Progress::More(Scalar::Literal(self, read))),
            }
        }
        (at, Progress::Ended)
    }
}
