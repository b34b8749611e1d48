//! A provider's base URL, taken apart and checked.

use std::net::{IpAddr, Ipv6Addr};

use reqwest::Url;

/// Where a provider answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// https; plain http otherwise.
    pub tls: bool,
    /// A name or an address; an IPv6 address without brackets.
    pub host: String,
    pub port: u16,
    /// What `:authority` says: the host, with the port where it is not the scheme's own.
    pub authority: String,
    /// Prefix of every path, without a trailing slash; empty for none.
    pub path: String,
}

/// Why a base URL is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("is not a URL: {0}")]
    NotAUrl(String),
    #[error("is longer than {MAX_URL_BYTES} bytes")]
    Length,
    #[error("must not hold white space, control characters or backslashes")]
    Characters,
    #[error("must start with https:// or http://")]
    Scheme,
    #[error("{0:?} is no host name and no address")]
    Host(String),
    #[error("must not have port 0")]
    Port,
    #[error("must not hold a user name or password; credentials are nouns of their own")]
    UserInfo,
    #[error("must not have a query or a fragment")]
    Query,
    #[error("must not have . or .. in its path")]
    Dots,
    #[error("{0} is a loopback, link-local or metadata address; set allow_private to allow it")]
    Private(String),
}

const MAX_URL_BYTES: usize = 2048;

impl Endpoint {
    /// Parses as browsers do (WHATWG), so that `127.1` and `0x7f000001` are seen as what they mean. What browsers put right
    /// in silence is refused: it was hardly meant.
    ///
    /// # Errors
    /// For anything but an http or https URL with a host and perhaps a port and a path.
    pub fn parse(base_url: &str, allow_private: bool) -> Result<Self, EndpointError> {
        check_written(base_url)?;
        let url = Url::parse(base_url).map_err(|e| EndpointError::NotAUrl(e.to_string()))?;
        let tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(EndpointError::Scheme),
        };
        if url.port() == Some(0) {
            return Err(EndpointError::Port);
        }
        let bracketed = url.host_str().unwrap_or_default();
        let host = bracketed.trim_start_matches('[').trim_end_matches(']').to_owned();
        if !is_host(&url) {
            return Err(EndpointError::Host(host));
        }
        if !allow_private && is_private(&host) {
            return Err(EndpointError::Private(host));
        }
        let authority = match url.port() {
            Some(port) => format!("{bracketed}:{port}"),
            None => bracketed.to_owned(),
        };
        let port = url.port_or_known_default().unwrap_or(if tls { 443 } else { 80 });
        Ok(Self { tls, host, port, authority, path: url.path().trim_end_matches('/').to_owned() })
    }
}

/// What is lost when a URL is parsed.
fn check_written(url: &str) -> Result<(), EndpointError> {
    if url.len() > MAX_URL_BYTES {
        return Err(EndpointError::Length);
    }
    if url.chars().any(|c| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err(EndpointError::Characters);
    }
    if url.contains(['?', '#']) {
        return Err(EndpointError::Query);
    }
    let Some((_, rest)) = url.split_once("://") else { return Err(EndpointError::Scheme) };
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.is_empty() {
        return Err(EndpointError::NotAUrl("it has no host".to_owned()));
    }
    if authority.contains('@') {
        return Err(EndpointError::UserInfo);
    }
    let dots = |segment: &str| matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    if path.split('/').any(dots) { Err(EndpointError::Dots) } else { Ok(()) }
}

/// An address, or labels of letters, digits, `-` and `_` such as can be looked up.
fn is_host(url: &Url) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    match url.domain() {
        Some(name) => name.len() <= 254 && name.strip_suffix('.').unwrap_or(name).split('.').all(label),
        None => url.has_host(),
    }
}

/// Names that mean this machine or the cloud's metadata service. What a public name resolves to is the network's matter.
fn is_private(host: &str) -> bool {
    let name = host.trim_end_matches('.');
    match name.parse::<IpAddr>() {
        Ok(address) => is_private_address(address),
        Err(_) => {
            ["localhost", "metadata", "instance-data", "metadata.google.internal"].contains(&name)
                || name.ends_with(".localhost")
        }
    }
}

fn is_private_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            // 100.100.100.200 and 168.63.129.16 are metadata services of clouds.
            v4.is_loopback()
                || v4.is_link_local()
                || v4.is_unspecified()
                || [[100, 100, 100, 200], [168, 63, 129, 16]].contains(&v4.octets())
        }
        IpAddr::V6(v6) => {
            const METADATA: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);
            let mapped = v6.to_ipv4_mapped().or_else(|| v6.to_ipv4());
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_unicast_link_local()
                || v6 == METADATA
                || mapped.is_some_and(|v4| is_private_address(IpAddr::V4(v4)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let e = Endpoint::parse("https://api.openai.com/v1/", false).unwrap();
        assert_eq!((e.tls, e.host.as_str(), e.port), (true, "api.openai.com", 443));
        assert_eq!((e.authority.as_str(), e.path.as_str()), ("api.openai.com", "/v1"));
        let e = Endpoint::parse("http://[2001:db8::1]:8080", false).unwrap();
        assert_eq!((e.host.as_str(), e.authority.as_str()), ("2001:db8::1", "[2001:db8::1]:8080"));
        assert_eq!(e.path, "");
        assert_eq!(Endpoint::parse("http://10.1.2.3:80/x", false).unwrap().authority, "10.1.2.3");
    }

    #[test]
    fn private_addresses_need_leave_in_every_spelling() {
        for host in [
            "127.0.0.1",
            "127.1",
            "0x7f000001",
            "2130706433",
            "0.0.0.0",
            "localhost",
            "LOCALHOST.",
            "x.localhost",
            "169.254.169.254",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[::ffff:127.0.0.1]",
            "[fd00:ec2::254]",
            "metadata.google.internal",
            "100.100.100.200",
        ] {
            let url = format!("http://{host}/v1");
            assert!(matches!(Endpoint::parse(&url, false), Err(EndpointError::Private(_))), "{url}");
            assert!(Endpoint::parse(&url, true).is_ok(), "{url}");
        }
    }

    #[test]
    fn what_does_not_belong_into_a_base_url_is_refused() {
        use EndpointError::{Characters, Dots, Length, Port, Query, Scheme, UserInfo};
        let error = |url: &str| Endpoint::parse(url, false).unwrap_err();
        assert_eq!(error("ftp://a/"), Scheme);
        assert_eq!(error("https://u@a/"), UserInfo);
        assert_eq!(error("https://u:p@a/"), UserInfo);
        assert_eq!(error("https://a/?x=1"), Query);
        assert_eq!(error("https://a/#x"), Query);
        assert_eq!(error("api.openai.com"), Scheme);
        assert!(matches!(error("https://a:99999/"), EndpointError::NotAUrl(_)));
        for url in ["https://@a/", "https://:@a/", "https://u@@a"] {
            assert_eq!(error(url), UserInfo, "{url}");
        }
        for url in ["https://a?", "https://a#", "https://a/v1?key=x#y"] {
            assert_eq!(error(url), Query, "{url}");
        }
        for url in [" https://a", "https://a ", "https://a/v 1", "https://a\t/", "https:\\\\a", "https://a/\0"] {
            assert_eq!(error(url), Characters, "{url:?}");
        }
        for url in ["https://a/..", "https://a/v1/../x", "https://a/./v1", "https://a/%2e%2E/x", "https://a/.%2e"] {
            assert_eq!(error(url), Dots, "{url}");
        }
        for url in ["https:///v1", "https://", "https://:443/"] {
            assert!(matches!(error(url), EndpointError::NotAUrl(_)), "{url}");
        }
        for url in ["https://*.a/", "https://a..b/", "https://a,b/", "https://.a/"] {
            assert!(matches!(error(url), EndpointError::Host(_)), "{url}: {}", error(url));
        }
        assert_eq!(error("https://a:0/"), Port);
        assert_eq!(error("https:a"), Scheme);
        assert_eq!(error(&format!("https://a/{}", "x".repeat(2040))), Length);
    }
}
