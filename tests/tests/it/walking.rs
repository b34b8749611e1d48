//! The walk: a request under a key goes through a real Envoy to the provider and comes back with its cost in the ledger.

use serde_json::json;
use sluicegate_tests::sse::text_of;
use sluicegate_tests::stack::{CHAT, EMBED, INPUT_NANO, OUTPUT_NANO, PROVIDER_SECRET, Stack};
use sluicegate_tests::{Http, side_by_side};

#[test]
fn one_request_not_streamed() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("walk").await;
        let reply = scene.chat(json!({})).await.unwrap();
        assert_eq!(reply.status, 200);
        let operation = reply.header("x-sluicegate-request-id").unwrap().to_owned();
        assert_eq!(reply.header("x-sluicegate-model"), Some(CHAT));
        assert_eq!(reply.header("x-sluicegate-backend"), Some(format!("scripted/{CHAT}").as_str()));
        let body = reply.json().await.unwrap();
        assert_eq!(body["choices"][0]["message"]["content"], "Hello from the scripted provider.");

        let seen = &scene.provider_saw(1).await[0];
        assert_eq!(seen.target, "/v1/chat/completions");
        assert_eq!(seen.header("authorization"), Some(format!("Bearer {PROVIDER_SECRET}").as_str()));
        assert_eq!(seen.header("accept-encoding"), Some("identity"));

        let row = scene.stack.ledger.only(scene.key.id).await;
        assert_eq!(row.operation.to_string(), operation);
        assert_eq!((row.route.as_str(), row.requested_model.as_str(), row.stream), ("chat.completions", CHAT, false));
        assert_eq!((row.input, row.output, row.source.as_str()), (12, 7, "reported"));
        assert_eq!(row.cost_nano, Some(12 * INPUT_NANO + 7 * OUTPUT_NANO));
        assert_eq!((row.status, row.upstream_status, row.ended.as_str()), (200, Some(200), "complete"));
        assert_eq!((row.attempt, row.last), (1, true));
        let rolled_up = scene.stack.ledger.rolled_up(scene.key.id).await.unwrap();
        assert_eq!(rolled_up, (1, 1, 12 * INPUT_NANO + 7 * OUTPUT_NANO));
    });
}

#[test]
fn one_request_streamed() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for http in [Http::H1, Http::H2] {
            let scene = stack.scene("walk-stream").await;
            let mut events = scene.send(http, scene.chat_call(json!({"stream": true}))).await.unwrap().events();
            assert_eq!(events.reply().status, 200);
            let all = events.rest().await.unwrap();
            assert_eq!(text_of(&all), "Hello from the scripted provider.");
            assert!(all.last().unwrap().is_done());
            let row = stack.ledger.only(scene.key.id).await;
            assert_eq!((row.input, row.output, row.source.as_str(), row.stream), (12, 7, "reported", true));
            assert_eq!(row.cost_nano, Some(12 * INPUT_NANO + 7 * OUTPUT_NANO));
            assert_eq!(row.ended, "complete");
        }
    });
}

#[test]
fn embeddings_and_models() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = sluicegate_tests::Scene::new(stack, "walk-embed", json!({"models": [EMBED]})).await;
        let body = json!({"input": ["a", "b"], "model": EMBED}).to_string();
        let reply = scene.send(Http::H1, scene.call("/v1/embeddings", body)).await.unwrap();
        assert_eq!(reply.status, 200);
        assert_eq!(reply.json().await.unwrap()["data"].as_array().unwrap().len(), 2);
        let row = stack.ledger.only(scene.key.id).await;
        assert_eq!((row.route.as_str(), row.input, row.output), ("embeddings", 5, 0));

        let call = sluicegate_tests::Call::get("/v1/models").bearer(&scene.key.secret);
        let models = scene.send(Http::H1, call).await.unwrap().json().await.unwrap();
        let ids: Vec<&str> = models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
        assert_eq!(ids, [EMBED], "only what the key may use");
    });
}

#[test]
fn every_carrier_of_a_key() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("carriers").await;
        let bare = || {
            let mut call = scene.chat_call(json!({}));
            call.headers.retain(|(name, _)| name != "authorization");
            call
        };
        for carrier in ["x-api-key", "api-key", "x-goog-api-key", "x-sluicegate-key"] {
            // A leftover provider key in another carrier is nobody's business, and goes nowhere.
            let call = bare().header(carrier, &scene.key.secret).bearer("sk-someone-elses");
            assert_eq!(scene.send(Http::H1, call).await.unwrap().status, 200, "{carrier}");
        }
        let mut in_query = bare();
        in_query.path += &format!("?key={}", scene.key.secret);
        assert_eq!(scene.send(Http::H1, in_query).await.unwrap().status, 200);
        for seen in scene.provider_saw(5).await {
            let all = format!("{:?} {}", seen.headers, seen.target);
            assert!(!all.contains("sk-sg-") && !all.contains("someone-elses"), "{all}");
        }
    });
}
