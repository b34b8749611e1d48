//! What a client on the wire sees of a script.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test panics to fail")]

use std::io::ErrorKind;
use std::net::SocketAddr;

use bytes::Bytes;
use scripted_provider::{
    Answer, Chat, CutHow, Fate, Hold, Listen, Newline, Pieces, Provider, Rule, Script, TestCa, UsageOn, Wait,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CHAT: &str = r#"{"messages":[],"model":"m","stream":true}"#;

async fn send(addr: SocketAddr, body: &str) -> TcpStream {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions?beta=1 HTTP/1.1\r\nHost: p\r\nX-Odd: one\r\nX-Odd: two\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket.write_all(body.as_bytes()).await.unwrap();
    socket
}

async fn all(mut socket: TcpStream) -> String {
    let mut reply = Vec::new();
    socket.read_to_end(&mut reply).await.unwrap();
    String::from_utf8(reply).unwrap()
}

/// The body of a chunked reply, and the sizes of its chunks.
fn chunks(reply: &str) -> (String, Vec<usize>) {
    let (_, mut rest) = reply.split_once("\r\n\r\n").unwrap();
    let (mut body, mut sizes) = (String::new(), Vec::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        body += &after[..size];
        sizes.push(size);
        rest = after[size..].strip_prefix("\r\n").unwrap();
    }
    assert_eq!(sizes.pop(), Some(0));
    (body, sizes)
}

#[tokio::test]
async fn keeps_requests_as_they_came() {
    let provider = Provider::start(Script::new()).await.unwrap();
    let reply = all(send(provider.addr(), CHAT).await).await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    let request = &provider.wait_for(1).await[0];
    assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/v1/chat/completions?beta=1"));
    assert_eq!(request.body, CHAT.as_bytes());
    let odd: Vec<&[u8]> = request.headers.get_all("x-odd").iter().map(|v| v.as_bytes()).collect();
    assert_eq!(odd, [b"one", b"two"]);
    assert!(request.complete);
    assert_eq!(request.fate().await, Fate::Delivered);
}

#[tokio::test]
async fn splits_at_any_byte() {
    let whole = Provider::start(Script::new()).await.unwrap();
    let (expected, _) = chunks(&all(send(whole.addr(), CHAT).await).await);
    assert!(expected.ends_with("data: [DONE]\n\n"));
    for pieces in [Pieces::Bytes(1), Pieces::Bytes(7), Pieces::Sizes(vec![1, 100, 3])] {
        let answer = Answer::from(Chat::default()).deliver(|d| d.pieces = pieces.clone());
        whole.script(Script::always(answer));
        let (body, sizes) = chunks(&all(send(whole.addr(), CHAT).await).await);
        assert_eq!(body, expected);
        if let Pieces::Bytes(n) = pieces {
            assert!(sizes[..sizes.len() - 1].iter().all(|s| *s == n), "{sizes:?}");
        }
    }
}

#[tokio::test]
async fn line_ends_are_a_choice() {
    for (newline, end) in [(Newline::CrLf, "[DONE]"), (Newline::Cr, "[DONE]")] {
        let answer = Answer::from(Chat::default()).deliver(|d| (d.newline, d.no_final_newline) = (newline, true));
        let provider = Provider::start(Script::always(answer)).await.unwrap();
        let (body, _) = chunks(&all(send(provider.addr(), CHAT).await).await);
        assert!(body.ends_with(end), "{body:?}");
        assert_eq!(body.contains('\n'), newline == Newline::CrLf);
        assert!(body.contains('\r'));
    }
}

#[tokio::test]
async fn a_cut_is_a_reset_a_close_or_a_quiet_end() {
    for how in [CutHow::Reset, CutHow::Close, CutHow::End] {
        let script = Script::always(Answer::from(Chat::default()).cut(500, how));
        let provider = Provider::start(script).await.unwrap();
        let mut socket = send(provider.addr(), CHAT).await;
        let mut reply = Vec::new();
        let end = socket.read_to_end(&mut reply).await;
        let clean = reply.ends_with(b"\r\n0\r\n\r\n");
        match how {
            CutHow::Reset => assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset),
            CutHow::Close => assert!(end.is_ok() && !clean),
            CutHow::End => assert!(end.is_ok() && clean),
        }
        let request = &provider.requests()[0];
        assert_eq!((request.delivered_bytes(), request.fate().await), (500, Fate::Cut));
    }
}

#[tokio::test]
async fn a_hold_keeps_each_event_back() {
    let hold = Hold::new();
    let provider = Provider::start(Script::always(Answer::from(Chat::default()).hold_events(&hold))).await.unwrap();
    let mut socket = send(provider.addr(), CHAT).await;
    hold.arrivals(1).await;
    let mut buffer = vec![0; 4096];
    let n = socket.read(&mut buffer).await.unwrap();
    let first = std::str::from_utf8(&buffer[..n]).unwrap();
    assert_eq!(first.matches("data: ").count(), 1, "{first}");
    hold.open();
    assert!(all(socket).await.contains("[DONE]"));
}

#[tokio::test]
async fn a_client_that_leaves_is_seen() {
    let hold = Hold::new();
    let provider = Provider::start(Script::always(Answer::from(Chat::default()).hold_events(&hold))).await.unwrap();
    let socket = send(provider.addr(), CHAT).await;
    hold.arrivals(1).await;
    drop(socket);
    assert_eq!(provider.requests()[0].fate().await, Fate::Abandoned);
}

#[tokio::test]
async fn silence_lasts() {
    let answer = Answer::from(Chat::default()).deliver(|d| d.headers = Wait::Forever);
    let provider = Provider::start(Script::always(answer)).await.unwrap();
    let mut socket = send(provider.addr(), CHAT).await;
    provider.wait_for(1).await;
    let silence = tokio::time::timeout(std::time::Duration::from_millis(50), socket.read_u8()).await;
    assert!(silence.is_err());
}

#[tokio::test]
async fn gzip_though_nobody_asked() {
    let answer = Answer::json(200, "{\"a\":1}").deliver(|d| d.gzip = true);
    let provider = Provider::start(Script::always(answer)).await.unwrap();
    let mut socket = send(provider.addr(), CHAT).await;
    let mut reply = Vec::new();
    socket.read_to_end(&mut reply).await.unwrap();
    let head = String::from_utf8_lossy(&reply);
    assert!(head.contains("content-encoding: gzip"), "{head}");
    assert!(reply.windows(2).any(|w| w == [0x1f, 0x8b]));
}

#[tokio::test]
async fn only_the_bearer_gets_in() {
    let provider = Provider::start(Script::new().require_bearer("s3")).await.unwrap();
    assert!(all(send(provider.addr(), CHAT).await).await.starts_with("HTTP/1.1 401"));
}

#[tokio::test]
async fn rules_pick_by_model_and_header() {
    let script = Script::new()
        .model("m", Chat::text(&["by model"]).usage_on(UsageOn::Never))
        .rule(Rule::any().header("x-odd", "two").answer(Answer::error(429, "slow", "rate_limit_error", "rate")));
    let provider = Provider::start(script).await.unwrap();
    assert!(all(send(provider.addr(), CHAT).await).await.contains("by model"));
    assert!(all(send(provider.addr(), "{}").await).await.starts_with("HTTP/1.1 429"));
}

#[tokio::test]
async fn canned_answers_are_the_same_bytes() {
    let body = Bytes::from_static(b"{\"canned\":true}");
    let provider = Provider::start(Script::canned(Answer::json(200, body))).await.unwrap();
    assert!(all(send(provider.addr(), "not even JSON").await).await.ends_with("{\"canned\":true}"));
    assert_eq!((provider.count(), provider.requests().len()), (1, 0));
}

#[tokio::test]
async fn tls_with_a_name_of_ones_choice() {
    let ca = TestCa::new().unwrap();
    let listen = Listen { tls: Some(ca.server(&["right.test"]).unwrap()), ..Listen::default() };
    let provider = Provider::start_on(listen, Script::new()).await.unwrap();
    for (name, trusted) in [("right.test", true), ("wrong.test", false)] {
        assert_eq!(handshake(&ca, provider.addr(), name).await.is_ok(), trusted, "{name}");
    }
    assert!(provider.base_url().starts_with("https://"));
}

async fn handshake(ca: &TestCa, addr: SocketAddr, name: &'static str) -> std::io::Result<()> {
    use rustls_pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls_pki_types::CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
    let provider = rustls::crypto::ring::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let socket = TcpStream::connect(addr).await?;
    let name = rustls_pki_types::ServerName::try_from(name).unwrap();
    tokio_rustls::TlsConnector::from(std::sync::Arc::new(config)).connect(name, socket).await.map(drop)
}
