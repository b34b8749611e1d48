//! Compressed requests: a provider gets what they decode to, and no bomb gets in.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use scripted_provider::{Answer, Hold};
use serde_json::json;
use sluicegate_tests::client::Outgoing;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::stack::{ALIAS, CHAT, Wanted};
use sluicegate_tests::{Call, Http, Stack, alone, side_by_side};

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

/// JSON of so many bytes that takes long to read and is not out of all proportion: no two of its values are much alike.
fn slow_to_read(bytes: usize) -> Vec<u8> {
    let mut body = format!("{{\"model\":\"{CHAT}\",\"messages\":[1").into_bytes();
    let mut random = 1_u64;
    while body.len() < bytes - 2 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        body.extend([b',', b"1234"[(random >> 33) as usize & 3]]);
    }
    body.extend(b"]}");
    body
}

/// A chat of so many bytes that hardly compress.
fn random_text(bytes: usize) -> Vec<u8> {
    let mut random = 1_u64;
    let digits = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{:016x}", random)
    });
    body(CHAT, &digits.take(bytes / 16).collect::<String>()).into_bytes()
}

/// A gzip member of empty blocks: millions of them in a body of a few megabytes, and nothing comes out.
fn empty_blocks(bytes: usize) -> Vec<u8> {
    let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    // Ten bits each: not the last, fixed codes, the end of the block.
    [header.as_slice(), &[0x02, 0x08, 0x20, 0x80, 0x00].repeat(bytes / 5)].concat()
}

/// What takes long to decode takes its turn: Envoy's watchdog would kill a worker that does nothing else for ten seconds.
#[test]
fn no_body_holds_up_a_worker() {
    alone(async {
        let stack = Stack::with(Wanted { workers: Some(1), ..Wanted::default() }).await;
        let scene = stack.scene("encoded-slow").await;
        let large = Bytes::from(zstd(&slow_to_read(10 << 20)));
        let blocks = Bytes::from(empty_blocks(4 << 20));
        assert!(large.len() < (10 << 20) / 5, "{}", large.len());
        let mut replies = tokio::task::JoinSet::new();
        for n in 0..24 {
            let (coding, body) = if n % 6 == 0 { ("gzip", blocks.clone()) } else { ("zstd", large.clone()) };
            let call = scene.call("/v1/chat/completions", body).header("content-encoding", coding);
            let addr = scene.addr();
            replies.spawn(async move {
                let reply = sluicegate_tests::send(Http::H2, addr, call).await?;
                let status = reply.status;
                let code = reply.json().await.map(|body| body["error"]["code"].as_str().map(str::to_owned));
                anyhow::Ok((status, code.unwrap_or_default()))
            });
        }
        let (mut served, mut longest) = (0, Duration::ZERO);
        loop {
            let asked = std::time::Instant::now();
            let ready =
                tokio::time::timeout(Duration::from_secs(5), scene.send(Http::H1, Call::get("/sluicegate/ready")));
            assert_eq!(ready.await.expect("others are answered").unwrap().status, 200);
            longest = longest.max(asked.elapsed());
            match replies.try_join_next() {
                Some(reply) => match reply.unwrap().unwrap() {
                    (200, _) => served += 1,
                    (503, Some(code)) => assert_eq!(code, "gateway_busy"),
                    other => panic!("{other:?}"),
                },
                None if replies.is_empty() => break,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        assert!(served > 0, "none was served; the others waited {longest:?}");
        assert_eq!(scene.chat(json!({})).await.unwrap().status, 200);
    });
}

/// What comes out of next to nothing is bounded together.
#[test]
fn what_is_decoded_is_bounded_together() {
    alone(async {
        let stack = Stack::with(Wanted { workers: Some(1), ..Wanted::default() }).await;
        let scene = stack.scene("encoded-many").await;
        let hold = Hold::new();
        scene.answer(Answer::default().hold_headers(&hold));
        let large = Bytes::from(zstd(&random_text(31 << 20)));
        let mut waiting = tokio::task::JoinSet::new();
        let call = || scene.call("/v1/chat/completions", large.clone()).header("content-encoding", "zstd");
        // 256 MiB in all: eight of them, one after the other.
        for n in 1..=8 {
            waiting.spawn(sluicegate_tests::send(Http::H1, scene.addr(), call()));
            tokio::time::timeout(Duration::from_secs(20), hold.arrivals(n)).await.expect("it reaches the provider");
        }
        let reply = scene.send(Http::H1, call()).await.unwrap();
        assert_eq!((reply.status, reply.header("retry-after").is_some()), (503, true));
        assert_eq!(reply.json().await.unwrap()["error"]["code"], "gateway_busy");
        hold.open();
        while let Some(reply) = waiting.join_next().await {
            assert_eq!(reply.unwrap().unwrap().status, 200);
        }
        assert_eq!(scene.send(Http::H1, call()).await.unwrap().status, 200, "there is room again");
    });
}
