//! Strings: skipping them fast, and telling whether a key is one of a few names.

/// How many leading bytes belong to a string without needing a closer look: up to a quote, a control character or,
/// with `escapes`, an escape that is rare or not all here; without, any escape.
///
/// Eight bytes at a time in a plain `u64`, one pass for all three: wasm32 without SIMD has 64-bit integers too,
/// where a search by `memchr2` and a second pass for control characters would cost twice.
pub(super) fn text_len(bytes: &[u8], escapes: bool) -> usize {
    let mut at = 0;
    loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some(word) = rest.first_chunk::<8>() else {
            return at + rest.iter().take_while(|b| !matches!(b, 0..=0x1f | b'"' | b'\\')).count();
        };
        let special = special(u64::from_le_bytes(*word));
        if special == 0 {
            at += 8;
            continue;
        }
        at += (special.trailing_zeros() / 8) as usize;
        // Code is full of these.
        match bytes.get(at..at + 2) {
            Some([b'\\', b'n' | b'"' | b'\\' | b't']) if escapes => at += 2,
            _ => return at,
        }
    }
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
        // A fold never shortens, and nearly every key ends here.
        let Some(text) = self.text().filter(|text| text.len() >= name.len()) else { return false };
        match text.first() {
            Some(first) if first.is_ascii() && !name.starts_with(char::from(first.to_ascii_lowercase())) => false,
            _ => std::str::from_utf8(text).is_ok_and(|text| text.chars().map(fold).eq(name.chars())),
        }
    }

    fn text(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The same, byte by byte.
    fn slow_len(bytes: &[u8], escapes: bool) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            at += match bytes[at..] {
                [b'\\', b'n' | b'"' | b'\\' | b't', ..] if escapes => 2,
                [0..=0x1f | b'"' | b'\\', ..] => break,
                _ => 1,
            }
        }
        at
    }

    proptest! {
        #[test]
        fn text_ends_where_a_plain_loop_says(
            bytes in prop::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b'n'), any::<u8>(), 0x1e_u8..0x23, 0x7e_u8..0x83], 0..40),
        ) {
            prop_assert_eq!(text_len(&bytes, false), slow_len(&bytes, false));
            // Near the end of a window the fast one may stop at an escape, and is then asked again.
            let (fast, slow) = (text_len(&bytes, true), slow_len(&bytes, true));
            prop_assert!(fast == slow || (fast + 8 > bytes.len() && fast < slow), "{fast} {slow}");
        }
    }
}
