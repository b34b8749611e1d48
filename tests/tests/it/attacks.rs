//! Requests that try to get past the gate, or to be read differently behind it: each is answered, none reaches a provider
//! that was not admitted.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::stack::CHAT;
use sluicegate_tests::{Call, Http, Outgoing, Scene, Stack, side_by_side};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Sends these bytes and returns all that comes back until the gateway closes, falls silent or has answered `replies`
/// times.
async fn raw(scene: &Scene<'_>, bytes: &[u8], replies: usize) -> String {
    let mut socket = TcpStream::connect(scene.addr()).await.unwrap();
    // The gateway may close before it has read everything.
    let _ = socket.write_all(bytes).await;
    let mut all = Vec::new();
    let read = async {
        let mut buffer = [0; 16 << 10];
        while let Ok(n) = socket.read(&mut buffer).await {
            all.extend_from_slice(&buffer[..n]);
            if n == 0 || statuses(&String::from_utf8_lossy(&all)).len() >= replies && all.ends_with(b"}") {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(10), read).await;
    String::from_utf8_lossy(&all).into_owned()
}

/// Of each reply in these bytes.
fn statuses(text: &str) -> Vec<u16> {
    text.split("HTTP/1.1 ").skip(1).filter_map(|reply| reply.get(..3)?.parse().ok()).collect()
}

/// A request line, the scene's key and tag, these further header lines, this body.
fn request(scene: &Scene<'_>, line: &str, headers: &[&str], body: &str) -> Vec<u8> {
    let (key, tag) = (&scene.key.secret, &scene.tag);
    let more: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    format!("{line} HTTP/1.1\r\nhost: gw\r\nauthorization: Bearer {key}\r\nopenai-project: {tag}\r\n{more}\r\n{body}")
        .into_bytes()
}

const LINE: &str = "POST /v1/chat/completions";

#[test]
fn of_framing() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("framing").await;
        let body = chat_body(json!({"model": CHAT})).to_string();
        let length = format!("content-length: {}", body.len());
        let chunked = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        let smuggled = format!("0\r\n\r\n{}", String::from_utf8(request(&scene, LINE, &[&length], &body)).unwrap());
        let cases: Vec<(&str, Vec<&str>, &str)> = vec![
            ("a length and chunks", vec![&length, "transfer-encoding: chunked"], &smuggled),
            ("chunks and a length", vec!["transfer-encoding: chunked", "content-length: 4"], &smuggled),
            ("two lengths", vec![&length, "content-length: 4"], &body),
            ("a list of lengths", vec!["content-length: 4, 5"], &body),
            ("a negative length", vec!["content-length: -1"], &body),
            ("an unknown transfer coding", vec!["transfer-encoding: xchunked"], &chunked),
            ("two transfer codings", vec!["transfer-encoding: chunked, chunked"], &chunked),
            ("a space before the colon", vec!["content-length : 4"], &body),
            ("a NUL in a header", vec!["x-a: b\0c", &length], &body),
            ("a chunk size that is none", vec!["transfer-encoding: chunked"], "zz\r\n{}\r\n0\r\n\r\n"),
            (
                "a chunk size that overflows",
                vec!["transfer-encoding: chunked"],
                "ffffffffffffffffff\r\n{}\r\n0\r\n\r\n",
            ),
        ];
        for (what, headers, body) in cases {
            let reply = raw(&scene, &request(&scene, LINE, &headers, body), 1).await;
            let got = statuses(&reply);
            assert!(got.first().is_some_and(|s| (400..600).contains(s)), "{what}: {reply}");
            assert!(!got.contains(&200), "{what}: {reply}");
        }
        assert!(scene.chat(json!({})).await.is_ok());
        assert_eq!(scene.provider_saw(1).await.len(), 1, "only the last one reached the provider");
    });
}

#[test]
fn of_methods_paths_and_empty_bodies() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("methods").await;
        let body = chat_body(json!({"model": CHAT})).to_string();
        for http in [Http::H1, Http::H2] {
            for method in ["HEAD", "GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"] {
                for outgoing in [Outgoing::Nothing, Outgoing::Whole(Bytes::from(body.clone()))] {
                    let call = Call { method, ..scene.call("/v1/chat/completions", "") }.body(outgoing);
                    assert_eq!(scene.send(http, call).await.unwrap().status, 405, "{http:?} {method}");
                }
            }
            let empty_chunks = Outgoing::Pieces { pieces: Vec::new(), trailers: Vec::new() };
            let trailers = vec![("x-a".to_owned(), "b".to_owned())];
            let only_trailers = Outgoing::Pieces { pieces: Vec::new(), trailers };
            for outgoing in [Outgoing::Nothing, Outgoing::Whole(Bytes::new()), empty_chunks, only_trailers] {
                let what = format!("{http:?} {outgoing:?}");
                let call = scene.call("/v1/chat/completions", "").body(outgoing);
                assert_eq!(scene.send(http, call).await.unwrap().status, 400, "{what}");
            }
            for path in
                ["/", "/v1", "/v1/chat", "/v1/chat/completions/x", "/chat/completions/", "/v1/chat%2fcompletions"]
            {
                let status = scene.send(http, scene.call(path, body.clone())).await.unwrap().status;
                assert!((400..500).contains(&status), "{http:?} {path}: {status}");
            }
        }
        let connect = raw(&scene, b"CONNECT gw:443 HTTP/1.1\r\nhost: gw:443\r\n\r\n", 1).await;
        assert!(!statuses(&connect).contains(&200), "{connect}");
        assert_eq!(scene.chat(json!({})).await.unwrap().status, 200);
        assert_eq!(scene.provider_saw(1).await.len(), 1, "only the last one reached the provider");
    });
}

/// What a client says in headers that are Envoy's or ours changes nothing.
#[test]
fn of_headers_that_are_not_a_clients() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = Scene::new(stack, "forged", json!({"models": [CHAT]})).await;
        let elsewhere = stack.admin.key(&scene.tag, "elsewhere", json!({"networks": ["10.11.0.0/16"]})).await.unwrap();
        let forged = [
            ("x-sluicegate-list", "sluicegate-position-1-1"),
            ("x-sluicegate-key-id", "1"),
            ("x-sluicegate-backend", "other"),
            ("x-envoy-max-retries", "50"),
            ("x-envoy-retry-on", "5xx"),
            ("x-envoy-upstream-rq-timeout-ms", "1"),
            ("x-envoy-original-path", "/v1/models"),
            ("x-envoy-decorator-operation", "x"),
            ("x-forwarded-for", "10.11.0.1"),
            ("x-forwarded-host", "evil"),
            ("forwarded", "for=10.11.0.1"),
        ];
        let with_all = |mut call: Call| {
            for (name, value) in forged {
                call = call.header(name, value);
            }
            call
        };
        for http in [Http::H1, Http::H2] {
            let status = async |call: Call| scene.send(http, with_all(call)).await.unwrap().status;
            let mut stranger = scene.chat_call(json!({}));
            stranger.headers.retain(|(name, _)| name != "authorization");
            assert_eq!(status(stranger.clone()).await, 401);
            assert_eq!(status(scene.chat_call(json!({"model": "no-such"}))).await, 404);
            sluicegate_tests::eventually("the second key is known", Duration::from_secs(10), || async {
                let got = status(stranger.clone().bearer(&elsewhere.secret)).await;
                anyhow::ensure!(got == 403, "{got}");
                Ok(())
            })
            .await;
            assert_eq!(status(scene.chat_call(json!({}))).await, 200);
        }
        for seen in scene.provider_saw(2).await {
            for (name, _) in forged {
                assert_eq!(seen.header(name), None, "{name} reached the provider");
            }
        }
    });
}

#[test]
fn of_what_follows_on_one_connection() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("pipelined").await;
        let body = chat_body(json!({"model": CHAT})).to_string();
        let length = format!("content-length: {}", body.len());
        let good = request(&scene, LINE, &[&length], &body);
        let tag = &scene.tag;
        let bad =
            format!("{LINE} HTTP/1.1\r\nhost: gw\r\nopenai-project: {tag}\r\n{length}\r\n\r\n{body}").into_bytes();
        let reply = raw(&scene, &[good.clone(), bad, good].concat(), 3).await;
        // The rest of a request that is refused at its headers is not read: the connection ends.
        assert_eq!(statuses(&reply), [200, 401], "{reply}");

        // Clients with large bodies ask first.
        let asking = request(&scene, LINE, &[&length, "expect: 100-continue"], "");
        let mut socket = TcpStream::connect(scene.addr()).await.unwrap();
        socket.write_all(&asking).await.unwrap();
        let mut head = vec![0; 25];
        socket.read_exact(&mut head).await.unwrap();
        assert_eq!(head, b"HTTP/1.1 100 Continue\r\n\r\n");
        socket.write_all(body.as_bytes()).await.unwrap();
        let mut head = vec![0; 12];
        socket.read_exact(&mut head).await.unwrap();
        assert_eq!(head, b"HTTP/1.1 200");
        assert_eq!(scene.provider_saw(2).await.len(), 2);
    });
}
