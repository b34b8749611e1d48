//! A request's headers, read once.

use super::credential::{CARRIERS, Finder, KeyHash, looks_like_token};
use crate::refusal::Refusal;

/// How much of a client's session id and model name is kept.
const MAX_LABEL_BYTES: usize = 128;

/// What a request's headers say.
#[derive(Debug)]
pub struct Head {
    pub method: String,
    /// With its query, but without `key=` parameters.
    pub path: String,
    /// The path above differs from what came: it has to be written back before anything logs it.
    pub path_changed: bool,
    pub key: Result<KeyHash, Refusal>,
    /// There is a token (JWT) in it that Envoy did not verify.
    pub unverified_token: bool,
    pub content_length: Option<u64>,
    /// Of the body, other than `identity`.
    pub content_encoding: Option<String>,
    pub upgrade: bool,
    /// Ledger column: the client's conversation or agent run.
    pub session: String,
    /// Headers that only we or Envoy may set: to be removed before the router reads them.
    pub forged: Vec<String>,
    /// Those of [`CARRIERS`] that came.
    pub carriers: Vec<&'static str>,
    /// Headers the client sent that a provider is not to see: removed in the first attempt.
    pub private: Vec<String>,
}

/// Headers by which clients name a conversation.
const SESSION: &[&[u8]] = &[b"x-sluicegate-session", b"x-claude-code-session-id", b"session_id", b"x-session-id"];

/// What Envoy adds to every request; the route removes it again, at less cost than the filter could.
const ENVOYS: &[&[u8]] = &[b"x-forwarded-for", b"x-forwarded-proto", b"x-request-id", b"x-envoy-internal"];

impl Head {
    /// `forwards` says which of a client's headers the dialect passes on to a provider.
    pub fn read<'a>(headers: impl Iterator<Item = (&'a [u8], &'a [u8])>, forwards: impl Fn(&[u8]) -> bool) -> Self {
        let mut head = Self {
            method: String::new(),
            path: String::new(),
            path_changed: false,
            key: Err(Refusal::MissingKey),
            unverified_token: false,
            content_length: None,
            content_encoding: None,
            upgrade: false,
            session: String::new(),
            forged: Vec::new(),
            carriers: Vec::new(),
            private: Vec::new(),
        };
        let mut finder = Finder::default();
        for (name, value) in headers {
            finder.header(name, value);
            head.take(name, value);
            head.sort_out(name, &forwards);
        }
        let cuts = finder.query(head.path.as_bytes());
        for cut in cuts.into_iter().rev() {
            head.path_changed = true;
            // `replace_range` panics inside a character; the cuts start and end at ASCII bytes.
            if head.path.is_char_boundary(cut.start) && head.path.is_char_boundary(cut.end) {
                head.path.replace_range(cut, "");
            }
        }
        if head.path_changed {
            let end = head.path.trim_end_matches(['?', '&']).len();
            head.path.truncate(end);
        }
        head.key = finder.finish();
        head
    }

    fn take(&mut self, name: &[u8], value: &[u8]) {
        match name {
            b":method" => self.method = text(value),
            b":path" => self.path = text(value),
            b"content-length" => self.content_length = std::str::from_utf8(value).ok().and_then(|v| v.parse().ok()),
            b"content-encoding" => {
                // Two headers are a list of two; `identity` in it is nothing.
                let codings = value.split(|b| *b == b',').map(<[u8]>::trim_ascii);
                for coding in codings.filter(|c| !c.is_empty() && !c.eq_ignore_ascii_case(b"identity")) {
                    let before = self.content_encoding.take().map(|before| before + ", ").unwrap_or_default();
                    self.content_encoding = Some(label((before + &label(coding)).as_bytes()));
                }
            }
            b"authorization" => self.unverified_token = looks_like_token(value),
            b"upgrade" => self.upgrade = true,
            // Extended CONNECT is HTTP/2's form of an upgrade.
            b":protocol" => self.upgrade = true,
            _ if SESSION.contains(&name) && self.session.is_empty() => self.session = label(value),
            _ => {}
        }
    }

    fn sort_out(&mut self, name: &[u8], forwards: &impl Fn(&[u8]) -> bool) {
        let carrier = CARRIERS.iter().find(|c| c.as_bytes() == name);
        if name.starts_with(b":") {
        } else if name.starts_with(b"x-sluicegate-") || (name.starts_with(b"x-envoy-") && name != b"x-envoy-internal") {
            self.forged.push(text(name));
        } else if let Some(carrier) = carrier {
            // Left to the route, which removes them natively, where the route is ours. So are Envoy's own.
            self.carriers.push(carrier);
        } else if !ENVOYS.contains(&name) && !forwards(name) {
            self.private.push(text(name));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A client's text as a column: short, one line, valid UTF-8.
pub fn label(bytes: &[u8]) -> String {
    let cut = bytes.get(..MAX_LABEL_BYTES).unwrap_or(bytes);
    let mut out = String::with_capacity(cut.len());
    for chunk in cut.utf8_chunks() {
        out.extend(chunk.valid().chars().filter(|c| !c.is_control()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(headers: &[(&str, &str)]) -> Head {
        let headers = headers.iter().map(|(n, v)| (n.as_bytes(), v.as_bytes()));
        Head::read(headers, |name| name == b"content-type")
    }

    #[test]
    fn headers_are_sorted_out() {
        let head = read(&[
            (":method", "POST"),
            (":path", "/v1/chat/completions?key=sk-sg-a-b&beta=true"),
            (":authority", "gw"),
            ("content-type", "application/json"),
            ("content-length", "12"),
            ("x-sluicegate-list", "evil"),
            ("x-envoy-max-retries", "9"),
            ("x-forwarded-for", "1.2.3.4"),
            ("cookie", "a=b"),
            ("x-claude-code-session-id", "s-1\n"),
        ]);
        assert_eq!(head.path, "/v1/chat/completions?beta=true");
        assert!(head.path_changed && head.key == Ok(KeyHash::of(b"sk-sg-a-b")));
        assert_eq!(head.content_length, Some(12));
        assert_eq!(head.forged, ["x-sluicegate-list", "x-envoy-max-retries"]);
        assert_eq!(head.carriers, ["cookie"]);
        assert_eq!(head.private, ["content-length", "x-claude-code-session-id"]);
        assert_eq!(head.session, "s-1");
    }

    #[test]
    fn a_label_is_short_and_clean() {
        assert_eq!(label(&[0xff, b'a', b'\n', b'b']), "ab");
        assert_eq!(label("é".repeat(100).as_bytes()).len(), 128);
    }
}
