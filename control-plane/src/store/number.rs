//! Numbers in references and queries: digits and nothing else.
//!
//! `str::parse` takes a sign, and a noun may be named `+19`: whoever deletes that must not meet the noun whose id is 19.

use std::str::FromStr;

use serde::{Deserialize as _, Deserializer};

/// The number that a text is.
pub fn digits<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// The id that a reference is; `None` where it is a name, which never consists of digits alone.
pub fn id(reference: &str) -> Option<i32> {
    digits(reference)
}

/// A field that may hold a number.
pub fn optional<'de, D: Deserializer<'de>, T: FromStr>(deserializer: D) -> Result<Option<T>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    digits(&text)
        .map(Some)
        .ok_or_else(|| serde::de::Error::custom("must be a number, in digits alone, and not too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_are_an_id() {
        assert_eq!((id("19"), id("019"), id("2147483647")), (Some(19), Some(19), Some(i32::MAX)));
        for name in ["+19", "-1", "", " 1", "1 ", "1_0", "0x1", "1.0", "\u{0661}", "2147483648", "acme"] {
            assert_eq!(id(name), None, "{name:?}");
        }
    }
}
