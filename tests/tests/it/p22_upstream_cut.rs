//! An upstream that is cut in the middle of its answer is a broken stream or an error event to the client, never a clean end.

use scripted_provider::{Answer, Chat, CutHow};
use serde_json::json;
use sluicegate_tests::stack::Stack;
use sluicegate_tests::{Http, side_by_side};

#[test]
fn a_stream() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for http in [Http::H1, Http::H2] {
            for how in [CutHow::Reset, CutHow::Close] {
                // In the first event, between events, in a later event, just before [DONE].
                for after in [50, 1_000, 1_777, 2_600] {
                    let scene = stack.scene("p22").await;
                    scene.answer(Answer::from(Chat::repeat("words and words", 40)).cut(after, how));
                    let what = format!("{http:?} {how:?} after {after}");
                    let Ok(reply) = scene.send(http, scene.chat_call(json!({"stream": true}))).await else {
                        continue;
                    };
                    if reply.status != 200 {
                        // Nothing had been passed on yet: an honest error.
                        assert!(reply.status >= 500, "{what}: {}", reply.status);
                        assert!(reply.json().await.unwrap()["error"]["code"].is_string(), "{what}");
                    } else {
                        let mut events = reply.events();
                        let rest = events.rest().await;
                        let told = |all: &Vec<sluicegate_tests::sse::Event>| {
                            all.iter().any(|e| e.json()["error"].is_object()) && !all.iter().any(|e| e.is_done())
                        };
                        assert!(rest.as_ref().map_or(true, told), "{what}: a clean end {rest:?}");
                    }
                    let row = stack.ledger.only(scene.key.id).await;
                    assert_eq!((row.ended.as_str(), row.source.as_str()), ("upstream_cut", "estimated"), "{what}");
                    assert!(row.input > 0 && row.output < 40 * 8, "{what}: {row:?}");
                }
            }
        }
    });
}

#[test]
fn a_whole_reply() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for chunked in [false, true] {
            for how in [CutHow::Reset, CutHow::Close] {
                let scene = stack.scene("p22-whole").await;
                scene.answer(Answer::from(Chat::default()).cut(200, how).deliver(|d| d.chunked = chunked));
                if let Ok(reply) = scene.chat(json!({})).await {
                    let (status, body) = (reply.status, reply.bytes().await);
                    assert!(status >= 500 || body.is_err(), "{how:?}: {status} {body:?}");
                }
                let row = stack.ledger.only(scene.key.id).await;
                assert_eq!((row.ended.as_str(), row.source.as_str()), ("upstream_cut", "estimated"));
            }
        }
    });
}

#[test]
fn an_error_event_passes_and_is_no_success() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("p22-error").await;
        let error =
            json!({"error": {"message": "overloaded", "type": "server_error", "code": "overloaded"}}).to_string();
        scene.answer(Chat { error_after: Some((2, error)), ..Chat::text(&["a", "b", "c"]) });
        let mut events = scene.send(Http::H1, scene.chat_call(json!({"stream": true}))).await.unwrap().events();
        let all = events.rest().await.unwrap();
        assert_eq!(all.last().unwrap().json()["error"]["code"], "overloaded");
        let row = stack.ledger.only(scene.key.id).await;
        assert_eq!((row.ended.as_str(), row.source.as_str()), ("provider_error", "estimated"));
    });
}
