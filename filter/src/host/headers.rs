//! Header maps in the host's form: count, the lengths of all names and values, then each NUL-terminated.

/// A number in a header.
pub fn parse<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// A header map as the host serialised it.
#[derive(Debug, Default)]
pub struct Headers(pub Vec<u8>);

impl Headers {
    /// Of a reply.
    pub fn status(&self) -> Option<u32> {
        self.iter().find(|(name, _)| *name == b":status").and_then(|(_, value)| parse(value))
    }

    /// Names are lower case. Ends early where the bytes are not what they should be.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let bytes = self.0.as_slice();
        let number = move |at: usize| -> Option<usize> {
            let word = bytes.get(at..at.checked_add(4)?)?;
            Some(u32::from_le_bytes(word.try_into().ok()?) as usize)
        };
        let count = number(0).unwrap_or(0);
        let mut at = 4 + count.saturating_mul(8);
        (0..count).map_while(move |i| {
            let (name_size, value_size) = (number(4 + i * 8)?, number(8 + i * 8)?);
            let name = bytes.get(at..at.checked_add(name_size)?)?;
            let value_at = at.checked_add(name_size)?.checked_add(1)?;
            let value = bytes.get(value_at..value_at.checked_add(value_size)?)?;
            at = value_at.checked_add(value_size)?.checked_add(1)?;
            Some((name, value))
        })
    }
}

/// What [`Headers`] reads.
pub(super) fn serialize(headers: &[(&str, &[u8])]) -> Vec<u8> {
    let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    let mut out = Vec::with_capacity(4 + headers.iter().map(|(n, v)| n.len() + v.len() + 10).sum::<usize>());
    out.extend(length(headers.len()));
    for (name, value) in headers {
        out.extend(length(name.len()));
        out.extend(length(value.len()));
    }
    for (name, value) in headers {
        out.extend(name.as_bytes());
        out.push(0);
        out.extend(*value);
        out.push(0);
    }
    out
}
