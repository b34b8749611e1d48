//! Which key a request carries.
//!
//! Clients differ in where they put it: OpenAI's SDKs and most CLIs send a bearer token, Azure's `api-key`, Anthropic's
//! CLIs `x-api-key`, Google's `x-goog-api-key` or `?key=`. All are taken on every route. What is not ours in a carrier (a
//! provider key left on a laptop) is not looked at, and never passed on.

use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::refusal::Refusal;

/// What every Sluicegate key starts with.
pub const KEY_PREFIX: &[u8] = b"sk-sg-";

/// Request headers that can carry a client's credential. None of them reaches a provider.
pub const CARRIERS: &[&str] = &[
    "authorization",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "x-sluicegate-key",
    "cookie",
    "proxy-authorization",
    "x-bf-vk",
    "x-litellm-api-key",
    "x-portkey-api-key",
];

/// SHA-256 of the whole key: all that is kept of it. The secret has 128 random bits, so the hash needs no salt, and
/// comparing hashes gives no timing away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash(pub [u8; 32]);

impl KeyHash {
    pub fn of(key: &[u8]) -> Self {
        Self(Sha256::digest(key).into())
    }
}

/// Gathers the keys of one request's carriers.
#[derive(Debug, Default)]
pub struct Finder {
    found: Option<KeyHash>,
    different: bool,
}

impl Finder {
    /// Looks at one header; others than carriers are passed over.
    pub fn header(&mut self, name: &[u8], value: &[u8]) {
        match name {
            // Of a header that is sent twice Envoy makes one, with a comma between.
            b"authorization" => value.split(|&b| b == b',').filter_map(bearer).for_each(|token| self.candidate(token)),
            b"x-api-key" | b"api-key" | b"x-goog-api-key" | b"x-sluicegate-key" => self.candidate(value.trim_ascii()),
            _ => {}
        }
    }

    /// Looks at a path's query; returns where the `key=` parameters stand that are to be cut out, each with one `&`.
    pub fn query(&mut self, path: &[u8]) -> Vec<Range<usize>> {
        let Some(question) = memchr::memchr(b'?', path) else { return Vec::new() };
        let mut cuts = Vec::new();
        let mut start = question + 1;
        while start <= path.len() {
            let rest = path.get(start..).unwrap_or_default();
            let end = start + memchr::memchr(b'&', rest).unwrap_or(rest.len());
            if let Some(value) = path.get(start..end).and_then(|p| p.strip_prefix(b"key=")) {
                self.candidate(value);
                cuts.push(start..(end + 1).min(path.len()));
            }
            start = end + 1;
        }
        cuts
    }

    /// The one key, if it is one.
    pub fn finish(self) -> Result<KeyHash, Refusal> {
        match self {
            Self { different: true, .. } => Err(Refusal::TwoKeys),
            Self { found: Some(hash), .. } => Ok(hash),
            Self { found: None, .. } => Err(Refusal::MissingKey),
        }
    }

    fn candidate(&mut self, value: &[u8]) {
        if !value.starts_with(KEY_PREFIX) {
            return;
        }
        let hash = KeyHash::of(value);
        self.different |= self.found.is_some_and(|found| found != hash);
        self.found = Some(hash);
    }
}

/// Whether an `authorization` header carries something of a JWT's shape: Envoy takes those out that it could verify.
pub fn looks_like_token(value: &[u8]) -> bool {
    bearer(value).is_some_and(|token| token.starts_with(b"eyJ") && memchr::memchr_iter(b'.', token).count() == 2)
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.trim_ascii().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(headers: &[(&str, &str)]) -> Result<KeyHash, Refusal> {
        let mut finder = Finder::default();
        for (name, value) in headers {
            finder.header(name.as_bytes(), value.as_bytes());
        }
        finder.finish()
    }

    #[test]
    fn every_carrier_is_read() {
        let expected = Ok(KeyHash::of(b"sk-sg-a-b"));
        for header in [
            ("authorization", "Bearer sk-sg-a-b"),
            ("authorization", "bearer   sk-sg-a-b "),
            ("x-api-key", "sk-sg-a-b"),
            ("api-key", "sk-sg-a-b"),
            ("x-goog-api-key", "sk-sg-a-b"),
            ("x-sluicegate-key", "sk-sg-a-b"),
        ] {
            assert_eq!(find(&[header]), expected, "{header:?}");
        }
    }

    #[test]
    fn foreign_credentials_are_not_looked_at_and_doubles_are_one() {
        assert_eq!(find(&[("authorization", "Bearer sk-proj-1"), ("cookie", "sk-sg-a-b")]), Err(Refusal::MissingKey));
        let ours = KeyHash::of(b"sk-sg-a-b");
        assert_eq!(find(&[("authorization", "Bearer sk-proj-1"), ("x-api-key", "sk-sg-a-b")]), Ok(ours));
        assert_eq!(find(&[("authorization", "Bearer sk-sg-a-b"), ("x-api-key", "sk-sg-a-b")]), Ok(ours));
        assert_eq!(find(&[("authorization", "Bearer sk-sg-a-b"), ("x-api-key", "sk-sg-a-c")]), Err(Refusal::TwoKeys));
        assert_eq!(find(&[("authorization", "Basic c2stc2ct"), ("authorization", "")]), Err(Refusal::MissingKey));
    }

    #[test]
    fn a_header_that_was_sent_twice_is_two_headers() {
        let find = |value| find(&[("authorization", value)]);
        let ours = Ok(KeyHash::of(b"sk-sg-a-b"));
        for value in
            ["Bearer sk-sg-a-b,Bearer sk-sg-a-b", "Bearer sk-sg-a-b, bearer sk-sg-a-b", "Basic c2s,Bearer sk-sg-a-b"]
        {
            assert_eq!(find(value), ours, "{value}");
        }
        assert_eq!(find("Bearer sk-sg-a-b,Bearer sk-sg-a-c"), Err(Refusal::TwoKeys));
    }

    #[test]
    fn a_key_in_the_query_is_found_and_cut_out() {
        for (path, rest) in [
            ("/v1/models?key=sk-sg-a-b", "/v1/models?"),
            ("/v1/models?a=1&key=sk-sg-a-b&b=2", "/v1/models?a=1&b=2"),
            ("/v1/models?key=AIza&key=sk-sg-a-b&", "/v1/models?"),
        ] {
            let mut finder = Finder::default();
            let mut left = path.as_bytes().to_vec();
            for cut in finder.query(path.as_bytes()).into_iter().rev() {
                left.drain(cut);
            }
            assert_eq!(String::from_utf8(left).unwrap(), rest);
            assert_eq!(finder.finish(), Ok(KeyHash::of(b"sk-sg-a-b")));
        }
        let mut finder = Finder::default();
        assert!(finder.query(b"/v1/models").is_empty() && finder.query(b"/v1?monkey=sk-sg-a-b").is_empty());
    }
}
