//! `include_usage` is always asked of the provider and never shows to a client that did not ask: an empty `choices`
//! breaks `choices[0]` loops.

use scripted_provider::{Chat, ReportedUsage, UsageOn};
use serde_json::{Value, json};
use sluicegate_tests::stack::{CACHED_NANO, INPUT_NANO, OUTPUT_NANO, Stack};
use sluicegate_tests::{Http, side_by_side};

const USAGE: ReportedUsage = ReportedUsage { prompt: 100, cached: 40, completion: 9, reasoning: 2 };

async fn chunks(on: UsageOn, stream_options: Option<Value>) -> (Vec<Value>, bool) {
    let stack = Stack::shared().await;
    let scene = stack.scene("p15").await;
    scene.answer(Chat::text(&["a", "b"]).usage(USAGE).usage_on(on));
    let mut body = json!({"stream": true});
    if let Some(options) = stream_options {
        body["stream_options"] = options;
    }
    let mut events = scene.send(Http::H1, scene.chat_call(body)).await.unwrap().events();
    let all = events.rest().await.unwrap();
    let asked =
        scene.provider_saw(1).await[0].json().pointer("/stream_options/include_usage") == Some(&Value::Bool(true));
    let row = stack.ledger.only(scene.key.id).await;
    if on != UsageOn::Never {
        assert_eq!((row.input, row.cache_read, row.output, row.reasoning), (60, 40, 7, 2), "{on:?}");
        assert_eq!(row.cost_nano, Some(60 * INPUT_NANO + 40 * CACHED_NANO + 9 * OUTPUT_NANO));
        assert_eq!(row.source, "reported");
    } else {
        assert_eq!(row.source, "estimated");
        assert!(row.output > 0 && row.input > 0);
    }
    assert!(all.last().unwrap().is_done());
    let chunks = all.iter().filter(|e| !e.is_done()).map(|e| e.json()).collect();
    (chunks, asked)
}

#[test]
fn a_client_that_did_not_ask_sees_none() {
    side_by_side(async {
        let quiet = [None, Some(json!({"include_usage": false})), Some(json!({})), Some(Value::Null)];
        for options in quiet {
            for on in [UsageOn::Asked, UsageOn::AskedWithoutNulls, UsageOn::Always] {
                let (chunks, asked) = chunks(on, options.clone()).await;
                assert!(asked, "the provider is asked for usage");
                assert!(chunks.iter().all(|c| !c["choices"].as_array().unwrap().is_empty()), "{on:?} {options:?}");
                assert!(chunks.iter().all(|c| c["usage"].is_null()), "{on:?} {options:?}");
            }
        }
    });
}

#[test]
fn a_client_that_asked_sees_it_once() {
    side_by_side(async {
        for on in [UsageOn::Asked, UsageOn::AskedWithoutNulls] {
            let (chunks, _) = chunks(on, Some(json!({"include_usage": true}))).await;
            let (last, others) = chunks.split_last().unwrap();
            assert_eq!(last["usage"]["prompt_tokens"], 100);
            assert_eq!(last["choices"], json!([]));
            assert!(others.iter().all(|c| c["usage"].is_null()));
        }
    });
}

#[test]
fn usage_on_content_chunks_and_no_usage_at_all() {
    side_by_side(async {
        for on in [UsageOn::LastContent, UsageOn::Each, UsageOn::Never] {
            let (chunks, _) = chunks(on, None).await;
            assert!(chunks.iter().all(|c| !c["choices"].as_array().unwrap().is_empty()), "{on:?}");
            let text: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
            assert_eq!(text, "ab");
        }
    });
}
