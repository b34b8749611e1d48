//! Surgical edits of a body: only the bytes that must change do.

use std::ops::Range;

/// Replaces the bytes of `range`; an empty range inserts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub range: Range<usize>,
    pub with: Vec<u8>,
}

/// Edits of one body, in order and apart from each other. Offsets count from the body's first byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    list: Vec<Edit>,
}

impl Edits {
    /// Adds an edit. One that overlaps another is not taken: `false`.
    #[must_use]
    pub fn push(&mut self, edit: Edit) -> bool {
        if edit.range.start > edit.range.end {
            return false;
        }
        let place = self.list.partition_point(|e| e.range.end <= edit.range.start);
        if self.list.get(place).is_some_and(|next| next.range.start < edit.range.end) {
            return false;
        }
        self.list.insert(place, edit);
        true
    }

    /// The body is right as it is.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Edit> {
        self.list.iter()
    }

    /// How many bytes from the body's start have to be rewritten: a host replaces prefixes, and nothing behind this changes.
    pub fn prefix_len(&self) -> usize {
        self.list.last().map_or(0, |edit| edit.range.end)
    }

    /// What stands in place of `prefix`, the body's first [`Edits::prefix_len`] bytes or more.
    /// `None` when it is shorter: half of an edit must not be written.
    pub fn rewrite(&self, prefix: &[u8]) -> Option<Vec<u8>> {
        let added: usize = self.list.iter().map(|edit| edit.with.len()).sum();
        let mut out = Vec::with_capacity(prefix.len().saturating_add(added));
        let mut at = 0;
        for edit in &self.list {
            out.extend_from_slice(prefix.get(at..edit.range.start)?);
            out.extend_from_slice(&edit.with);
            at = edit.range.end;
        }
        out.extend_from_slice(prefix.get(at..)?);
        Some(out)
    }

    /// By how many bytes the body grows.
    pub fn size_change(&self) -> i64 {
        let len = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        self.list.iter().map(|edit| len(edit.with.len()).saturating_sub(len(edit.range.len()))).sum()
    }
}

/// The bytes to cut so that a member is gone from the object it stands in, with the comma that parted it.
/// `member` reaches from its key's first byte to its value's last, in `document`.
pub fn removal(document: &[u8], member: Range<usize>) -> Range<usize> {
    let before = document.get(..member.start).unwrap_or_default().trim_ascii_end();
    if let Some(rest) = before.strip_suffix(b",") {
        return rest.len()..member.end;
    }
    let after = document.get(member.end..).unwrap_or_default();
    let with_comma = after.trim_ascii_start().strip_prefix(b",");
    member.start..with_comma.map_or(member.end, |rest| document.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Scanner;

    fn edit(range: Range<usize>, with: &str) -> Edit {
        Edit { range, with: with.as_bytes().to_vec() }
    }

    #[test]
    fn edits_are_applied_in_order_of_place() {
        let mut edits = Edits::default();
        assert!(edits.is_empty());
        assert_eq!((edits.prefix_len(), edits.size_change()), (0, 0));
        assert!(edits.push(edit(4..6, "FIVE")));
        assert!(edits.push(edit(1..1, "-")));
        assert_eq!(edits.prefix_len(), 6);
        assert_eq!(edits.size_change(), 3);
        assert_eq!(edits.rewrite(b"012345").unwrap(), b"0-123FIVE");
        assert_eq!(edits.rewrite(b"0123456789").unwrap(), b"0-123FIVE6789");
        assert_eq!(edits.rewrite(b"01234"), None);
    }

    #[test]
    fn what_overlaps_is_not_taken() {
        let mut edits = Edits::default();
        assert!(edits.push(edit(2..5, "")));
        for range in [4..6, 0..3, 3..4, 2..5] {
            assert!(!edits.push(edit(range.clone(), "x")), "{range:?}");
        }
        assert!(edits.push(edit(5..5, "a")) && edits.push(edit(2..2, "b")));
        assert_eq!(edits.rewrite(b"0123456").unwrap(), b"01ba56");
    }

    #[test]
    fn a_member_goes_with_one_comma() {
        for (document, rest) in [
            (r#"{"u":null}"#, r#"{}"#),
            (r#"{ "u" : {"a":[1]} }"#, r#"{  }"#),
            (r#"{"u":null,"a":1}"#, r#"{"a":1}"#),
            (r#"{"u":null , "a":1}"#, r#"{ "a":1}"#),
            (r#"{"a":1,"u":null}"#, r#"{"a":1}"#),
            (r#"{"a":1 , "u":7 ,"b":2}"#, r#"{"a":1  ,"b":2}"#),
            ("{\"a\":1,\n  \"u\": null\n}", "{\"a\":1\n}"),
        ] {
            let mut scanner = Scanner::new(&["u"]);
            scanner.push(document.as_bytes()).unwrap();
            let scanned = scanner.finish().unwrap();
            let member = scanned.get("u").unwrap();
            let cut = removal(document.as_bytes(), member.key.start..member.value.end);
            let mut left = document.to_owned();
            left.replace_range(cut, "");
            assert_eq!(left, rest);
            serde_json::from_str::<serde_json::Value>(&left).unwrap();
        }
    }
}
