//! Any split of a stream into chunks, any line end, gives the same events and the same usage.

use scripted_provider::{Answer, Chat, Newline, Pieces, ReportedUsage, Text, ToolCall};
use serde_json::{Value, json};
use sluicegate_tests::ledger::Row;
use sluicegate_tests::stack::Stack;
use sluicegate_tests::{Http, side_by_side};

/// One of everything: text of several bytes a letter, quotes and escapes, reasoning, parallel tool calls, comments.
fn rich() -> Chat {
    let call = |id: &str, arguments: &[&str]| ToolCall {
        id: id.into(),
        name: "weather".into(),
        arguments: arguments.iter().map(|s| (*s).to_owned()).collect(),
    };
    Chat {
        text: Text::Deltas(["Grüße", " 👋🏽", " \"data: [DONE]\"", "\\n\n\r\n", " 東京"].map(str::to_owned).into()),
        reasoning: vec!["hm, ".into(), "naïve".into()],
        tool_calls: vec![call("c1", &["{\"city\":", "\"Köln\"}"]), call("c2", &["{}"])],
        usage: ReportedUsage { prompt: 33, cached: 8, completion: 21, reasoning: 4 },
        comments: true,
        ..Chat::default()
    }
}

async fn delivered(stack: &Stack, answer: Answer) -> (Vec<Value>, Row) {
    let scene = stack.scene("p18").await;
    scene.answer(answer);
    let mut events = scene.send(Http::H1, scene.chat_call(json!({"stream": true}))).await.unwrap().events();
    let all = events.rest().await.unwrap();
    assert!(all.last().unwrap().is_done());
    let row = stack.ledger.only(scene.key.id).await;
    (all.iter().map(|e| e.json()).collect(), row)
}

fn usage(row: &Row) -> (i64, i64, i64, i64, Option<i64>, &str) {
    (row.input, row.cache_read, row.output, row.reasoning, row.cost_nano, row.source.as_str())
}

#[test]
fn splits_and_line_ends_change_nothing() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let (expected, row) = delivered(stack, rich().into()).await;
        assert_eq!(usage(&row), (25, 8, 17, 4, row.cost_nano, "reported"));
        let splits = [
            Pieces::Bytes(1),
            Pieces::Bytes(2),
            Pieces::Bytes(5),
            Pieces::Bytes(61),
            Pieces::Bytes(100_000),
            Pieces::Sizes(vec![1, 200, 3, 17]),
        ];
        for pieces in splits {
            for newline in [Newline::Lf, Newline::CrLf, Newline::Cr] {
                for no_final_newline in [false, true] {
                    let answer = Answer::from(rich()).deliver(|d| {
                        (d.pieces, d.newline, d.no_final_newline) = (pieces.clone(), newline, no_final_newline);
                    });
                    let (events, split) = delivered(stack, answer).await;
                    let what = format!("{pieces:?} {newline:?} {no_final_newline}");
                    assert_eq!(events, expected, "{what}");
                    assert_eq!(usage(&split), usage(&row), "{what}");
                }
            }
        }
    });
}

#[test]
fn a_whole_reply_in_pieces_is_the_same_reply() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for pieces in [Pieces::Bytes(1), Pieces::Bytes(13)] {
            for chunked in [false, true] {
                let scene = stack.scene("p18-whole").await;
                scene.answer(Answer::from(rich()).deliver(|d| (d.pieces, d.chunked) = (pieces.clone(), chunked)));
                let body = scene.chat(json!({})).await.unwrap().json().await.unwrap();
                assert_eq!(
                    body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"],
                    "{\"city\":\"Köln\"}"
                );
                let row = stack.ledger.only(scene.key.id).await;
                assert_eq!((row.input, row.cache_read, row.output, row.reasoning), (25, 8, 17, 4));
            }
        }
    });
}
