//! Which streams of somebody else's listener are ours.
//!
//! Proxies differ in how they read a path: some resolve dots and escapes, some merge slashes. So a path is ours if it
//! lies under a prefix in either reading, as it stands or resolved: what could reach a path of ours is never waved through.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// An empty list means any.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scope {
    /// Without ports; case does not matter.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Whole segments: `/v1` covers `/v1` and `/v1/models`, not `/v10`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub path_prefixes: Vec<String>,
}

impl Scope {
    /// Every stream is ours.
    pub fn is_everything(&self) -> bool {
        self.hosts.is_empty() && self.path_prefixes.is_empty()
    }

    /// # Errors
    /// The field at fault, and why.
    pub fn check(&self) -> Result<(), String> {
        for (i, host) in self.hosts.iter().enumerate() {
            if host.is_empty() || host_of(host.as_bytes()) != host.as_bytes() || host.contains(['/', '*', ' ']) {
                return Err(format!("scope.hosts[{i}]: must be one host, without a port"));
            }
        }
        for (i, prefix) in self.path_prefixes.iter().enumerate() {
            let plain = prefix.starts_with('/') && !prefix.contains(['?', '#', '%', '\\']);
            if !plain || prefix.split('/').any(|segment| segment == "." || segment == "..") {
                return Err(format!("scope.path_prefixes[{i}]: must be a plain path from the root"));
            }
        }
        Ok(())
    }

    /// Whether a request is ours; `authority` and `path` are its `:authority` and `:path`.
    pub fn covers(&self, authority: &[u8], path: &[u8]) -> bool {
        self.covers_host(authority) && self.covers_path(path)
    }

    fn covers_host(&self, authority: &[u8]) -> bool {
        let host = host_of(authority);
        self.hosts.is_empty() || self.hosts.iter().any(|ours| ours.as_bytes().eq_ignore_ascii_case(host))
    }

    fn covers_path(&self, path: &[u8]) -> bool {
        if self.path_prefixes.is_empty() {
            return true;
        }
        let path = without_origin(path);
        let path = path.split(|b| matches!(b, b'?' | b'#')).next().unwrap_or_default();
        let stands: Vec<Cow<'_, [u8]>> = segments(path).map(Cow::Borrowed).collect();
        let unescaped = unescaped(path);
        let resolved = resolved(&unescaped);
        self.path_prefixes.iter().any(|prefix| {
            let under = |path: &[Cow<'_, [u8]>]| {
                let mut path = path.iter();
                segments(prefix.as_bytes()).all(|segment| path.next().is_some_and(|s| s.as_ref() == segment))
            };
            under(&stands) || under(&resolved)
        })
    }
}

/// The host of an authority: without its port, and without the dot that may end a full name.
fn host_of(authority: &[u8]) -> &[u8] {
    let host = match authority.iter().rposition(|b| *b == b':') {
        // In brackets a colon belongs to the address.
        Some(colon) if authority.get(colon..).is_some_and(|rest| !rest.contains(&b']')) => {
            authority.get(..colon).unwrap_or(authority)
        }
        _ => authority,
    };
    host.strip_suffix(b".").unwrap_or(host)
}

/// A request line may hold a whole URL: `http://host/path`.
fn without_origin(path: &[u8]) -> &[u8] {
    if path.starts_with(b"/") {
        return path;
    }
    let Some(scheme) = memchr::memmem::find(path, b"://") else { return path };
    let rest = path.get(scheme + 3..).unwrap_or_default();
    memchr::memchr(b'/', rest).and_then(|slash| rest.get(slash..)).unwrap_or_default()
}

fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|b| *b == b'/').filter(|segment| !segment.is_empty())
}

/// Escapes decoded once, and backslashes as the slashes that some take them for.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        let digit =
            |at: usize| after.get(at).and_then(|b| char::from(*b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
        let (byte, after) = match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => (high << 4 | low, after.get(2..).unwrap_or_default()),
            _ => (byte, after),
        };
        out.push(if byte == b'\\' { b'/' } else { byte });
        rest = after;
    }
    out
}

/// The segments with `.` and `..` resolved.
fn resolved(path: &[u8]) -> Vec<Cow<'_, [u8]>> {
    let mut out = Vec::new();
    for segment in segments(path) {
        match segment {
            b"." => {}
            b".." => drop(out.pop()),
            other => out.push(Cow::Borrowed(other)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn scope(hosts: &[&str], path_prefixes: &[&str]) -> Scope {
        let own = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Scope { hosts: own(hosts), path_prefixes: own(path_prefixes) }
    }

    fn covers_path(prefixes: &[&str], path: &str) -> bool {
        scope(&[], prefixes).covers(b"any", path.as_bytes())
    }

    #[test]
    fn without_a_scope_everything_is_ours() {
        assert!(Scope::default().covers(b"", b"") && Scope::default().is_everything());
    }

    #[test]
    fn hosts_are_compared_without_case_and_port() {
        let ours = scope(&["LLM.example.com", "[::1]", "10.0.0.1"], &[]);
        for authority in
            ["llm.example.com", "llm.EXAMPLE.com:8443", "llm.example.com.", "[::1]:80", "[::1]", "10.0.0.1:1"]
        {
            assert!(ours.covers(authority.as_bytes(), b"/"), "{authority}");
        }
        for authority in ["", "example.com", "llm.example.com.evil", "xllm.example.com", "[::2]:80", "::1", ":80"] {
            assert!(!ours.covers(authority.as_bytes(), b"/"), "{authority}");
        }
    }

    #[test]
    fn a_prefix_is_whole_segments() {
        for path in ["/v1", "/v1/", "/v1/chat/completions", "/v1?a=b", "/v1/x#f"] {
            assert!(covers_path(&["/v1"], path) && covers_path(&["/v1/"], path), "{path}");
        }
        for path in ["", "/", "*", "/v10", "/v", "/V1", "/app/v1", "/app?next=/v1/models", "/app#/v1", "/v1;x/models"] {
            assert!(!covers_path(&["/v1"], path), "{path}");
        }
        assert!(covers_path(&["/a", "/llm/v1"], "/llm/v1/models") && !covers_path(&["/a", "/llm/v1"], "/llm/v2"));
        assert!(covers_path(&["/"], "/anything") && covers_path(&["/"], "*"));
    }

    #[test]
    fn no_way_of_writing_a_path_gets_around_a_prefix() {
        for path in [
            "//v1/models",
            "/v1//models",
            "/./v1/models",
            "/app/../v1/models",
            "/app/%2e%2e/v1/models",
            "/app/%2E./v1/models",
            "/app%2f..%2fv1/models",
            "/%76%31/models",
            "/app\\..\\v1\\models",
            "/app%5c..%5cv1",
            "http://other/v1/models",
            "HTTPS://other//v1",
            // As it stands this is under /v1, whatever comes of it.
            "/v1/../app",
            "/v1/%2e%2e/app",
        ] {
            assert!(covers_path(&["/v1"], path), "{path}");
        }
        for path in
            ["/app/..", "/..", "/app/%2e%2e/app", "http://v1/models", "http://v1", "/app//v1", "/%252e/x", "/v%31%"]
        {
            assert!(!covers_path(&["/v1"], path), "{path}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |hosts: &[&str], prefixes: &[&str]| scope(hosts, prefixes).check().unwrap_err();
        for host in ["", "a:80", "https://a", "*.a", "a b", "a."] {
            assert!(error(&["ok", host], &[]).starts_with("scope.hosts[1]"), "{host}");
        }
        for prefix in ["", "v1", "/v1?x", "/a/../b", "/%76", "/a\\b"] {
            assert!(error(&[], &[prefix]).starts_with("scope.path_prefixes[0]"), "{prefix}");
        }
        assert_eq!(scope(&["a", "[::1]"], &["/v1", "/"]).check(), Ok(()));
    }

    proptest! {
        #[test]
        fn what_is_put_before_or_between_changes_nothing(
            noise in proptest::collection::vec(prop::sample::select(vec!["/", "/.", "/x/..", "/%2e", "/x/%2E%2e", "\\", "/y%2f.."]), 0..6),
            tail in "[a-z/.%?]{0,12}",
        ) {
            let path = format!("{}/v1", noise.concat());
            prop_assert!(covers_path(&["/v1"], &path), "{path}");
            let path = format!("/app/{tail}");
            let escapes = tail.contains("..") || tail.contains('%');
            prop_assert!(escapes || !covers_path(&["/v1"], &path), "{path}");
        }

        #[test]
        fn any_bytes_are_read(authority: Vec<u8>, path: Vec<u8>) {
            scope(&["a"], &["/v1"]).covers(&authority, &path);
        }
    }
}
