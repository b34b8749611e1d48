//! Providers that answer oddly, and clients that do not finish: the framing holds, the ledger has each request.

use bytes::Bytes;
use scripted_provider::{Answer, CutHow};
use serde_json::json;
use sluicegate_tests::stack::{CHAT, EMBED, Stack};
use sluicegate_tests::{Http, Outgoing, side_by_side};

use crate::lists;

const CONTENT: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1,\"total_tokens\":4}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn events(text: impl Into<Bytes>) -> Answer {
    Answer::raw(200, "text/event-stream", text)
}

#[test]
fn a_stream_that_announces_its_length() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for http in [Http::H1, Http::H2] {
            // An event is taken out.
            let scene = stack.scene("announced").await;
            scene.answer(events([CONTENT, USAGE, DONE].concat()).header("x-sluicegate-cost", "0.01"));
            let reply = scene.send(http, scene.chat_call(json!({"stream": true}))).await.unwrap();
            assert_eq!((reply.header("content-length"), reply.header("x-sluicegate-cost")), (None, None));
            assert_eq!(reply.bytes().await.unwrap(), [CONTENT, DONE].concat().as_bytes());
            let row = stack.ledger.only(scene.key.id).await;
            assert_eq!((row.input, row.output, row.ended.as_str()), (3, 1, "complete"));

            // One is added.
            let scene = stack.scene("announced-cut").await;
            scene.answer(events(CONTENT.replace("\"stop\"", "null")));
            let reply = scene.send(http, scene.chat_call(json!({"stream": true}))).await.unwrap();
            let text = reply.text().await.unwrap();
            assert!(text.starts_with("data: {\"choices\"") && text.contains("upstream_cut"), "{text}");
            assert_eq!(stack.ledger.only(scene.key.id).await.ended, "upstream_cut");
        }
    });
}

#[test]
fn a_whole_reply_that_breaks_off_is_an_error_in_the_dialect() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for how in [CutHow::Reset, CutHow::Close] {
            let scene = stack.scene("held-cut").await;
            scene.answer(Answer::json(200, format!("{{\"x\":\"{}\"}}", "y".repeat(900))).cut(300, how));
            let reply = scene.chat(json!({})).await.unwrap();
            let status = reply.status;
            assert!(status >= 500 && reply.header("x-sluicegate-request-id").is_some(), "{how:?}: {status}");
            assert!(reply.json().await.unwrap()["error"]["code"].is_string());
            let row = stack.ledger.only(scene.key.id).await;
            assert_eq!((row.status, row.source.as_str()), (i32::from(status), "estimated"), "{how:?}");
        }
    });
}

#[test]
fn usage_that_cannot_be_is_an_estimate_in_the_ledger() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("absurd").await;
        let usage =
            json!({"usage": {"prompt_tokens": 4_000_000_000_000_u64, "completion_tokens": 4_000_000_000_000_u64}});
        scene.answer(Answer::json(200, usage.to_string()));
        assert_eq!(scene.chat(json!({})).await.unwrap().status, 200);
        let row = stack.ledger.only(scene.key.id).await;
        assert_eq!((row.source.as_str(), row.ended.as_str()), ("estimated", "complete"));
        assert!(row.cost_nano.unwrap() < 1_000_000, "{row:?}");
    });
}

#[test]
fn what_is_compressed_passes_as_it_is_and_is_estimated() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("compressed").await;
        // Any bytes will do: no one looks at them on the way.
        let body: Vec<u8> = (0..200).map(|n| (n * 7 % 251) as u8).collect();
        scene.answer(events(body.clone()).header("content-encoding", "gzip"));
        let reply = scene.chat(json!({"stream": true})).await.unwrap();
        assert_eq!(reply.header("content-encoding"), Some("gzip"));
        assert_eq!(reply.bytes().await.unwrap(), body);
        let row = stack.ledger.only(scene.key.id).await;
        assert_eq!((row.source.as_str(), row.output), ("estimated", 50));
    });
}

/// No status that a provider can choose asks for another attempt, which another provider would be paid for.
#[test]
fn no_error_of_a_provider_is_tried_again_elsewhere() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("own-599").await;
        let target = |model: &str| json!({"provider": "scripted", "model": model});
        let name = lists::model(&scene, json!([target(CHAT), target(EMBED)])).await;
        for status in [429, 503, 599] {
            scene.answer(Answer::json(status, "{}"));
            let reply = scene.chat(json!({"model": name})).await.unwrap();
            assert_eq!((reply.status, reply.header("x-sluicegate-attempts")), (status, Some("1")));
        }
    });
}

#[test]
fn an_upload_that_stalls_is_told_so() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("stalled").await;
        let part = Bytes::from_static(b"{\"model\":");
        let call = scene.call("/v1/chat/completions", "").body(Outgoing::Half { part, announced: 100 });
        let reply = scene.send(Http::H1, call).await.unwrap();
        assert_eq!(reply.status, 408);
        assert_eq!(reply.json().await.unwrap()["error"]["code"], "upload_stalled");
        let row = stack.ledger.only(scene.key.id).await;
        assert_eq!((row.status, row.refusal.as_deref()), (408, Some("upload_stalled")));
    });
}

/// Whoever asked for a reply would wait for ever, on a connection that speaks another protocol now.
#[test]
fn an_upgrade_that_nobody_asked_for() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for http in [Http::H1, Http::H2] {
            let scene = stack.scene("switched").await;
            scene.answer(Answer::raw(101, "text/plain", "").header("upgrade", "x").header("connection", "upgrade"));
            let reply = scene.send(http, scene.chat_call(json!({}))).await.unwrap();
            assert_eq!(reply.status, 503, "{http:?}");
            assert_eq!(reply.json().await.unwrap()["error"]["code"], "upstream_unavailable");
        }
    });
}
