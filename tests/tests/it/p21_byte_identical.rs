//! A request in the provider's own dialect reaches it byte for byte, but for what must change; the reply likewise.

use scripted_provider::{Answer, Chat};
use serde_json::json;
use sluicegate_tests::stack::{ALIAS, CHAT, Stack};
use sluicegate_tests::{Http, side_by_side};

/// Bodies that a re-serialiser would change: order of keys, spaces, escapes, numbers, unknown fields, nested `model`s.
fn bodies(model: &str) -> Vec<String> {
    let messages = r#"[{"content":[{"type":"text","text":"a\u0041\/\ud83d\udc4b","cache_control":{"type":"ephemeral"}}],"role":"user"}]"#;
    vec![
        // openai-python 2.x: messages first.
        format!(r#"{{"messages":{messages},"model":"{model}","max_tokens":50,"temperature":1.0}}"#),
        // openai-python 3.x: model first.
        format!(r#"{{"model":"{model}","messages":{messages},"seed":7}}"#),
        format!("\n{{ \"n\" : 1e0,\t\"model\"\r\n:\"{model}\" , \"messages\" : {messages} , \"top_p\": 0.10 }}  \n"),
        format!(
            r#"{{"metadata":{{"model":"other","stream":true}},"x-unknown":[1,2,{{"model":null}}],"model":"{model}","messages":{messages}}}"#
        ),
        format!(
            r#"{{"messages":[{{"role":"user","content":"say \"model\": \"x\" \\"}}],"big":12345678901234567890123,"model":"{model}","small":-0.0e-7}}"#
        ),
        // 2 MB before the model.
        format!(r#"{{"messages":[{{"role":"user","content":"{}"}}],"model":"{model}"}}"#, "ä ".repeat(700_000)),
    ]
}

async fn received(body: &str, http: Http) -> bytes::Bytes {
    let scene = Stack::shared().await.scene("p21").await;
    let reply = scene.send(http, scene.call("/v1/chat/completions?beta=true&x=%20y", body.to_owned())).await.unwrap();
    let status = reply.status;
    assert_eq!(status, 200, "{}", reply.text().await.unwrap());
    let seen = scene.provider_saw(1).await.remove(0);
    assert_eq!(seen.target, "/v1/chat/completions?beta=true&x=%20y");
    assert_eq!(seen.header("content-length"), Some(seen.body.len().to_string().as_str()));
    seen.body
}

#[test]
fn nothing_changes_where_nothing_must() {
    side_by_side(async {
        for http in [Http::H1, Http::H2] {
            for body in bodies(CHAT) {
                assert!(received(&body, http).await == body.as_bytes(), "{:.200}", body);
            }
        }
    });
}

#[test]
fn another_name_changes_the_name_alone() {
    side_by_side(async {
        for body in bodies(ALIAS) {
            let expected = body.replace(&format!("\"{ALIAS}\""), &format!("\"{CHAT}\""));
            assert!(received(&body, Http::H1).await == expected.as_bytes(), "{:.200}", body);
        }
    });
}

/// `longer` is `shorter` with one run of bytes put in.
fn is_one_insertion(shorter: &[u8], longer: &[u8]) -> bool {
    let front = shorter.iter().zip(longer).take_while(|(a, b)| a == b).count();
    let back = shorter.iter().rev().zip(longer.iter().rev()).take_while(|(a, b)| a == b).count();
    longer.len() > shorter.len() && front + back >= shorter.len()
}

#[test]
fn a_stream_gets_include_usage_and_nothing_else() {
    side_by_side(async {
        for options in ["", r#""stream_options":{},"#, r#""stream_options":{"include_obfuscation":false},"#] {
            let body = format!(r#"{{{options}"stream" : true,"messages":[],"model":"{CHAT}"}}"#);
            let got = received(&body, Http::H1).await;
            let parsed: serde_json::Value = serde_json::from_slice(&got).unwrap();
            assert_eq!(parsed["stream_options"]["include_usage"], true);
            assert!(is_one_insertion(body.as_bytes(), &got), "{}", String::from_utf8_lossy(&got));
        }
        let asked = format!(
            r#"{{"stream":true,"stream_options":{{ "include_usage" : true }},"messages":[],"model":"{CHAT}"}}"#
        );
        assert_eq!(received(&asked, Http::H1).await, asked);
    });
}

#[test]
fn replies_pass_as_they_are() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let direct = scripted_provider::Provider::start(scripted_provider::Script::new()).await.unwrap();
        for body in [json!({}), json!({"stream": true, "stream_options": {"include_usage": true}})] {
            let scene = stack.scene("p21-reply").await;
            scene.answer(Answer::from(Chat::default()).header("openai-processing-ms", "17"));
            let reply = scene.chat(body.clone()).await.unwrap();
            assert_eq!(reply.header("openai-processing-ms"), Some("17"));
            let call = sluicegate_tests::Call::post(
                "/v1/chat/completions",
                sluicegate_tests::scene::chat_body(body).to_string(),
            );
            let expected = sluicegate_tests::send(Http::H1, direct.addr(), call).await.unwrap().bytes().await.unwrap();
            assert_eq!(reply.bytes().await.unwrap(), expected);
        }
    });
}

#[test]
fn headers_that_must_survive() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("p21-headers").await;
        let kept = [("idempotency-key", "i-1"), ("openai-organization", "o-1"), ("openai-beta", "b=v1")];
        let dropped = [
            ("cookie", "c=1"),
            ("x-forwarded-for", "9.9.9.9"),
            ("x-litellm-api-key", "k"),
            ("x-envoy-max-retries", "9"),
        ];
        let mut call = scene.chat_call(json!({}));
        for (name, value) in kept.iter().chain(&dropped) {
            call = call.header(name, value);
        }
        assert_eq!(scene.send(Http::H1, call).await.unwrap().status, 200);
        let seen = scene.provider_saw(1).await.remove(0);
        for (name, value) in kept {
            assert_eq!(seen.header(name), Some(value));
        }
        for (name, _) in dropped {
            assert_eq!(seen.header(name), None, "{name}");
        }
        let ours = |n: &hyper::header::HeaderName| {
            n.as_str().starts_with("x-sluicegate-") || n.as_str().starts_with("x-envoy-")
        };
        assert!(!seen.headers.keys().any(ours), "{:?}", seen.headers);
    });
}
