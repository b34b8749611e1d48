//! Compressed requests: a provider gets what they decode to, and no bomb gets in.

use std::io::Write as _;

use bytes::Bytes;
use serde_json::json;
use sluicegate_tests::client::Outgoing;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::stack::{ALIAS, CHAT};
use sluicegate_tests::{Http, Stack, side_by_side};

/// What a body may be, in bytes.
const LIMIT: usize = 32 << 20;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// As Codex does it.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 3).unwrap()
}

type Encode = fn(&[u8]) -> Vec<u8>;
const CODINGS: [(&str, Encode); 2] = [("gzip", gzip), ("zstd", zstd)];

fn body(model: &str, content: &str) -> String {
    chat_body(json!({"model": model, "messages": [{"role": "user", "content": content}]})).to_string()
}

/// In one piece with its length; in pieces; in pieces, its end in trailers.
fn shapes(encoded: Vec<u8>) -> [Outgoing; 3] {
    let whole = Bytes::from(encoded);
    let pieces: Vec<Bytes> = whole.chunks(5_000).map(|piece| whole.slice_ref(piece)).collect();
    let trailers = vec![("x-checksum".to_owned(), "1".to_owned())];
    [
        Outgoing::Whole(whole),
        Outgoing::Pieces { pieces: pieces.clone(), trailers: Vec::new() },
        Outgoing::Pieces { pieces, trailers },
    ]
}

/// The second model has another name at its provider, so its body is edited, too.
#[test]
fn a_provider_gets_what_they_decode_to() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let long = "All of it, \"quoted\" and \u{e4}. ".repeat(50_000);
        for (coding, encode) in CODINGS {
            for http in [Http::H1, Http::H2] {
                for (model, content) in [(CHAT, "short"), (CHAT, &long), (ALIAS, &long)] {
                    let sent = body(model, content);
                    for outgoing in shapes(encode(sent.as_bytes())) {
                        let scene = stack.scene("encoded").await;
                        let call = scene.call("/v1/chat/completions", "").header("content-encoding", coding);
                        let reply = scene.send(http, call.body(outgoing)).await.unwrap();
                        let status = reply.status;
                        assert_eq!(status, 200, "{coding} {http:?}: {}", reply.text().await.unwrap());
                        let seen = scene.provider_saw(1).await.remove(0);
                        let expected = body(CHAT, content);
                        assert!(seen.body == expected.as_bytes(), "{coding} {http:?}: {} bytes", seen.body.len());
                        assert_eq!(seen.header("content-encoding"), None);
                        assert_eq!(seen.header("content-length"), Some(expected.len().to_string().as_str()));
                        assert_eq!(stack.ledger.only(scene.key.id).await.source, "reported");
                    }
                }
            }
        }
    });
}

#[test]
fn what_is_too_much_or_broken_is_refused() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("encoded-badly").await;
        let refused = async |coding: &str, encoded: Vec<u8>| {
            let call = scene.call("/v1/chat/completions", encoded).header("content-encoding", coding);
            let reply = scene.send(Http::H1, call).await.unwrap();
            let status = reply.status;
            (status, reply.json().await.unwrap()["error"]["code"].as_str().unwrap_or_default().to_owned())
        };
        for (coding, encode) in CODINGS {
            let bomb = encode(body(CHAT, &" ".repeat(LIMIT)).as_bytes());
            assert!(bomb.len() < 200_000, "{coding}: {}", bomb.len());
            assert_eq!(refused(coding, bomb).await, (413, "request_too_large".to_owned()), "{coding}");
            let whole = encode(body(CHAT, "some words").as_bytes());
            let cut = whole[..whole.len() / 2].to_vec();
            assert_eq!(refused(coding, cut).await, (400, "broken_encoding".to_owned()), "{coding}");
            assert_eq!(refused(coding, b"{}".to_vec()).await, (400, "broken_encoding".to_owned()), "{coding}");
            assert_eq!(refused(coding, encode(b"[]")).await, (400, "invalid_json".to_owned()), "{coding}");
            let twice = encode(&whole);
            assert_eq!(refused(&format!("{coding}, {coding}"), twice).await.0, 415, "{coding}");
        }
        assert_eq!(scene.chat(json!({})).await.unwrap().status, 200, "others are served");
        assert_eq!(scene.provider_saw(1).await.len(), 1, "none of them reached the provider");
    });
}
