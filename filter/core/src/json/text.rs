//! Strings: skipping them fast, and telling whether a key is one of a few names.

/// How many leading bytes are neither a quote, a backslash nor a control character.
///
/// Eight bytes at a time in a plain `u64`, one pass for all three: wasm32 without SIMD has 64-bit integers too,
/// where a search by `memchr2` and a second pass for control characters would cost twice.
pub(super) fn plain_len(bytes: &[u8]) -> usize {
    let (words, tail) = bytes.as_chunks::<8>();
    for (i, word) in words.iter().enumerate() {
        let special = special(u64::from_le_bytes(*word));
        if special != 0 {
            return i * 8 + (special.trailing_zeros() / 8) as usize;
        }
    }
    let plain = |b: &&u8| !matches!(b, 0..=0x1f | b'"' | b'\\');
    words.len() * 8 + tail.iter().take_while(plain).count()
}

/// The high bit of the first byte that ends plain text; bits of later bytes may be set wrongly (by a borrow).
/// Source: <https://graphics.stanford.edu/~seander/bithacks.html#HasLessInWord>
fn special(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGH: u64 = ONES << 7;
    let zero = |w: u64| w.wrapping_sub(ONES) & !w;
    let control = word.wrapping_sub(ONES * 0x20) & !word;
    (control | zero(word ^ (ONES * 0x22)) | zero(word ^ (ONES * 0x5c))) & HIGH
}

/// The decoded text of a key, as far as it can still be a wanted name.
#[derive(Debug, Default)]
pub struct KeyText {
    bytes: [u8; Self::MAX],
    /// More than `MAX`: too long to be a wanted name.
    len: usize,
}

impl KeyText {
    /// The longest name that can be wanted.
    pub const MAX: usize = 32;

    pub(super) fn push(&mut self, part: &[u8]) {
        let end = self.len.saturating_add(part.len());
        if let Some(to) = self.bytes.get_mut(self.len..end) {
            to.copy_from_slice(part);
        }
        self.len = end;
    }

    /// Adds a `\u` escape. Half of a surrogate pair becomes U+FFFD: no wanted name has either.
    pub(super) fn push_unit(&mut self, unit: u16) {
        let char = char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER);
        self.push(char.encode_utf8(&mut [0; 4]).as_bytes());
    }

    pub(super) fn is(&self, name: &str) -> bool {
        self.text() == Some(name.as_bytes())
    }

    /// Equal to `name` for a reader that ignores case, as Go's `encoding/json` does with Unicode's simple folding:
    /// there `ſ` is an `s` and the Kelvin sign a `k`. Source: <https://pkg.go.dev/encoding/json#Unmarshal>
    pub(super) fn folds_to(&self, name: &str) -> bool {
        let fold = |c: char| match c {
            '\u{17f}' => 's',
            '\u{212a}' => 'k',
            _ => c.to_ascii_lowercase(),
        };
        let Some(Ok(text)) = self.text().map(std::str::from_utf8) else { return false };
        text.len() >= name.len() && text.chars().map(fold).eq(name.chars())
    }

    fn text(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn plain_text_ends_where_a_plain_loop_says(
            bytes in prop::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), any::<u8>(), 0x1e_u8..0x23, 0x7e_u8..0x83], 0..40),
        ) {
            let expected = bytes.iter().take_while(|b| **b >= 0x20 && **b != b'"' && **b != b'\\').count();
            prop_assert_eq!(plain_len(&bytes), expected);
        }
    }
}
