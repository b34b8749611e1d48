//! Each refusal has its status and code, in OpenAI's shape, with the request id where agents show it.

use std::time::Duration;

use scripted_provider::Answer;
use serde_json::{Value, json};
use sluicegate_tests::stack::{CHAT, EMBED};
use sluicegate_tests::{Call, Http, Scene, Stack, eventually, side_by_side};

pub(crate) async fn check(scene: &Scene<'_>, call: Call, status: u16, code: &str) -> Value {
    let reply = scene.send(Http::H1, call.clone()).await.unwrap();
    let id = reply.header("x-sluicegate-request-id").map(str::to_owned);
    let (got, kind) = (reply.status, reply.header("content-type").map(str::to_owned));
    let retry_after = reply.header("retry-after").is_some();
    let body = reply.json().await.unwrap();
    assert_eq!((got, body["error"]["code"].as_str()), (status, Some(code)), "{} {}: {body}", call.method, call.path);
    assert_eq!(kind.as_deref(), Some("application/json"), "{code}");
    let error = body["error"].as_object().unwrap();
    let mut fields: Vec<&str> = error.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["code", "message", "param", "type"]);
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    };
    assert_eq!(error["type"], kind, "{code}");
    let id = id.unwrap_or_else(|| panic!("{code} has no request id"));
    assert!(error["message"].as_str().unwrap().contains(&id), "{code}: {error:?} does not name {id}");
    assert_eq!(retry_after, status == 503, "{code}");
    body
}

#[test]
fn not_of_a_key_sent_twice_nor_of_a_network_in_ipv6s_clothes() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("meant").await;
        let networks = json!({"networks": ["::ffff:127.0.0.0/104"]});
        let key = stack.admin.key(&scene.tag, "here", networks).await.unwrap();
        eventually("the key works", Duration::from_secs(5), || async {
            let twice = Call::get("/v1/models").bearer(&key.secret).bearer(&key.secret);
            let status = scene.send(Http::H1, twice).await?.status;
            anyhow::ensure!(status == 200, "{status}");
            Ok(())
        })
        .await;
    });
}

#[test]
fn of_the_credential() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("refused").await;
        let chat = |key: &str| with_key(scene.chat_call(json!({})), key);
        let mut bare = scene.chat_call(json!({}));
        bare.headers.retain(|(n, _)| n != "authorization");
        check(&scene, bare, 401, "missing_api_key").await;
        check(&scene, chat("sk-sg-nobody-000000000000000000000000"), 401, "invalid_api_key").await;
        let two = scene.chat_call(json!({})).header("x-api-key", "sk-sg-other-000000000000000000000000");
        check(&scene, two, 400, "two_api_keys").await;

        let key = |name: &'static str, more| stack.admin.key(&scene.tag, name, more);
        let expires = chrono::Utc::now() + chrono::TimeDelta::seconds(2);
        let expired = key("expired", json!({"expires_at": expires})).await.unwrap();
        let disabled = key("disabled", json!({"disabled": true})).await.unwrap();
        let elsewhere = key("elsewhere", json!({"networks": ["10.11.0.0/16"]})).await.unwrap();
        becomes(&scene, &expired.secret, "expired_api_key").await;
        becomes(&scene, &disabled.secret, "disabled_api_key").await;
        becomes(&scene, &elsewhere.secret, "network_not_allowed").await;
        check(&scene, chat(&expired.secret), 401, "expired_api_key").await;
        check(&scene, chat(&disabled.secret), 401, "disabled_api_key").await;
        check(&scene, chat(&elsewhere.secret), 403, "network_not_allowed").await;

        stack.admin.block_org(&scene.tag).await.unwrap();
        becomes(&scene, &scene.key.secret, "owner_blocked").await;
        check(&scene, chat(&scene.key.secret), 403, "owner_blocked").await;
        assert!(scene.stack.provider.requests().iter().all(|r| r.header("openai-project") != Some(&scene.tag)));
    });
}

fn with_key(mut call: Call, key: &str) -> Call {
    call.headers.retain(|(n, _)| n != "authorization");
    call.bearer(key)
}

/// Waits until the Envoy has heard of it; asks what reaches no provider.
async fn becomes(scene: &Scene<'_>, key: &str, code: &str) {
    eventually(code, Duration::from_secs(10), || async {
        let body = scene.send(Http::H1, Call::get("/v1/models").bearer(key)).await?.json().await?;
        anyhow::ensure!(body["error"]["code"] == code, "{body}");
        Ok(())
    })
    .await;
}

#[test]
fn of_the_request() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = Scene::new(stack, "refused-request", json!({"models": [CHAT]})).await;
        let post = |body: &str| scene.call("/v1/chat/completions", body.to_owned());
        let chat = |more| scene.chat_call(more);
        let body = check(&scene, chat(json!({"model": EMBED})), 403, "model_not_allowed").await;
        assert_eq!(body["error"]["param"], "model");
        let body = check(&scene, chat(json!({"model": "no-such"})), 404, "model_not_found").await;
        assert_eq!(body["error"]["param"], "model");
        check(&scene, scene.call("/v1/nothing/here", "{}"), 404, "unknown_route").await;
        let wrong =
            Call { method: "GET", ..scene.call("/v1/chat/completions", "") }.body(sluicegate_tests::Outgoing::Nothing);
        check(&scene, wrong, 405, "method_not_allowed").await;
        for text in ["", "not JSON", "[]", "{\"model\":", "{\"model\":\"gpt-scripted\"} x", "\"x\""] {
            check(&scene, post(text), 400, "invalid_json").await;
        }
        for (text, field) in [
            ("{\"messages\":[]}", "model"),
            ("{\"model\":5}", "model"),
            ("{\"model\":null}", "model"),
            ("{\"model\":\"gpt-scripted\",\"stream\":\"yes\"}", "stream"),
        ] {
            let body = check(&scene, post(text), 400, "invalid_field").await;
            assert_eq!(body["error"]["param"], field, "{text}");
        }
        // Which of the two counts is the reader's choice: so neither, also where the second is hidden by an escape.
        for text in [
            "{\"model\":\"gpt-scripted\",\"messages\":[],\"model\":\"secret\"}",
            "{\"model\":\"gpt-scripted\",\"m\\u006fdel\":\"secret\"}",
        ] {
            check(&scene, post(text), 400, "duplicate_field").await;
        }
        let encoded = post("{}").header("content-encoding", "br");
        check(&scene, encoded, 415, "unsupported_encoding").await;
        let upgrade = Call::get("/v1/chat/completions")
            .bearer(&scene.key.secret)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        check(&scene, upgrade, 426, "upgrade_not_supported").await;
        assert!(stack.provider.requests().iter().all(|r| r.header("openai-project") != Some(&scene.tag)));
    });
}

#[test]
fn of_the_provider() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for status in [401, 403] {
            let scene = stack.scene("refused-provider").await;
            scene.answer(Answer::error(status, "Incorrect API key", "invalid_request_error", "invalid_api_key"));
            check(&scene, scene.chat_call(json!({})), 502, "provider_refused_credential").await;
            let row = stack.ledger.only(scene.key.id).await;
            assert_eq!((row.status, row.upstream_status), (502, Some(i32::from(status))));
        }
        // What the provider says of the request itself stays as it is.
        for status in [400, 404, 429, 500, 503] {
            let scene = stack.scene("passed").await;
            scene.answer(Answer::error(status, "the provider's words", "kind", "its_code").header("retry-after", "7"));
            let reply = scene.chat(json!({})).await.unwrap();
            assert_eq!((reply.status, reply.header("retry-after")), (status, Some("7")));
            assert_eq!(reply.json().await.unwrap()["error"]["message"], "the provider's words");
            let row = stack.ledger.only(scene.key.id).await;
            assert_eq!((row.ended.as_str(), row.output), ("provider_error", 0), "{status}");
            assert_eq!(row.cost_nano.unwrap_or(0), 0, "an error costs nothing");
        }
    });
}
