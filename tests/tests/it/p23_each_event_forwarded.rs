//! Each event is forwarded when it arrives: the provider sends the next one only after the client has the one before.

use scripted_provider::{Answer, Chat, Hold};
use serde_json::json;
use sluicegate_tests::stack::Stack;
use sluicegate_tests::{Http, side_by_side};

#[test]
fn over_both_protocols() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for http in [Http::H1, Http::H2] {
            let scene = stack.scene("p23").await;
            let hold = Hold::new();
            let words = ["one ", "two ", "three ", "four ", "five"];
            scene.answer(Answer::from(Chat::text(&words)).hold_events(&hold));
            // The head may wait for the first content.
            hold.release(1);
            let mut events = scene.send(http, scene.chat_call(json!({"stream": true}))).await.unwrap().events();
            let opening = events.next().await.unwrap().unwrap().json();
            assert_eq!(opening["choices"][0]["delta"]["role"], "assistant");
            for (i, word) in words.iter().enumerate() {
                // Nothing after this event has left the provider: it stands at the hold.
                hold.arrivals(i + 1).await;
                let event = events.next().await.unwrap().unwrap();
                assert_eq!(event.json()["choices"][0]["delta"]["content"], *word, "{http:?}");
                hold.release(1);
            }
            hold.open();
            assert!(events.rest().await.unwrap().last().unwrap().is_done());
        }
    });
}
