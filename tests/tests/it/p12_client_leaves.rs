//! A client that leaves, in the middle of a stream or of its own request, leaves exactly one record, flagged estimated,
//! neither zero nor the full bill.

use std::time::Duration;

use scripted_provider::{Answer, Chat, Fate, Hold};
use serde_json::json;
use sluicegate_tests::stack::{OUTPUT_NANO, Stack};
use sluicegate_tests::{Http, Outgoing, side_by_side};

#[test]
fn in_the_middle_of_a_stream() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for http in [Http::H1, Http::H2] {
            let scene = stack.scene("p12-stream").await;
            let hold = Hold::new();
            // 400 deltas, of which the client sees a few.
            scene.answer(Answer::from(Chat::repeat("several words each ", 400)).hold_events(&hold));
            let mut events = scene.send(http, scene.chat_call(json!({"stream": true}))).await.unwrap().events();
            hold.release(20);
            for _ in 0..20 {
                events.next().await.unwrap().unwrap();
            }
            events.leave();
            let seen = scene.provider_saw(1).await;
            let row = stack.ledger.only(scene.key.id).await;
            assert_eq!((row.source.as_str(), row.ended.as_str()), ("estimated", "client_gone"));
            // About 20 deltas of 4 tokens came, the whole would have been 400 of them.
            assert!((20..400).contains(&row.output), "{row:?}");
            assert!(row.input > 0);
            let cost = row.cost_nano.unwrap();
            assert!(cost > 0 && cost < 400 * OUTPUT_NANO, "{row:?}");
            assert_eq!(seen[0].fate().await, Fate::Abandoned, "the provider is not read on");
            hold.open();
        }
    });
}

#[test]
fn before_the_first_byte() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for http in [Http::H1, Http::H2] {
            let scene = stack.scene("p12-early").await;
            let hold = Hold::new();
            scene.answer(Answer::default().hold_headers(&hold));
            let call = scene.chat_call(json!({"stream": true}));
            let arrived = hold.clone();
            sluicegate_tests::client::send_and_leave(
                http,
                scene.addr(),
                call,
                async move { arrived.arrivals(1).await },
            )
            .await
            .unwrap();
            let row = stack.ledger.only(scene.key.id).await;
            // The provider read the question and bills it.
            assert_eq!((row.source.as_str(), row.ended.as_str(), row.output), ("estimated", "client_gone", 0));
            assert!(row.input > 0 && row.status == 0, "{row:?}");
            hold.open();
        }
    });
}

#[test]
fn in_the_middle_of_the_request() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for http in [Http::H1, Http::H2] {
            let scene = stack.scene("p12-half").await;
            let half = Outgoing::Half { part: "{\"model\":\"gpt-scripted\",\"mess".into(), announced: 10_000 };
            let call = scene.chat_call(json!({})).body(half);
            let before = stack.envoy.stat("downstream_cx_rx_bytes_total").await.unwrap();
            let arrived = async {
                sluicegate_tests::eventually("Envoy has the first half", std::time::Duration::from_secs(5), || async {
                    anyhow::ensure!(stack.envoy.stat("downstream_cx_rx_bytes_total").await? > before + 200);
                    Ok(())
                })
                .await;
            };
            sluicegate_tests::client::send_and_leave(http, scene.addr(), call, arrived).await.unwrap();
            let row = stack.ledger.only(scene.key.id).await;
            assert_eq!((row.ended.as_str(), row.source.as_str(), row.output), ("client_gone", "none", 0));
            assert_eq!(row.cost_nano.unwrap_or(0), 0, "nothing reached a provider");
        }
        assert!(stack.provider.requests().iter().all(|r| r.complete));
    });
}

/// What was never on a connection is not billed, also where the client leaves before the attempt has failed.
#[test]
fn while_the_provider_is_being_connected_to() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("p12-connecting").await;
        // A queue for one connection, and two in it: the next SYN is not answered.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let full = socket.listen(0).unwrap();
        let addr = full.local_addr().unwrap();
        let mut queued = Vec::new();
        while let Ok(Ok(connection)) =
            tokio::time::timeout(Duration::from_millis(300), tokio::net::TcpStream::connect(addr)).await
        {
            queued.push(connection);
        }
        stack.admin.provider(&scene.tag, &format!("http://{addr}/v1"), None).await.unwrap();
        let model = json!({"name": scene.tag, "targets": [{"provider": scene.tag, "model": "m"}]});
        stack.admin.post("/v1/models", model).await.unwrap();
        let price = json!({"provider": scene.tag, "model": "m", "input": "2.50", "output": "10.00"});
        stack.admin.post("/v1/prices", price).await.unwrap();
        let call = || scene.chat_call(json!({"model": scene.tag}));
        sluicegate_tests::eventually("a client leaves an attempt", Duration::from_secs(30), || async {
            let left = tokio::time::timeout(Duration::from_secs(1), scene.send(Http::H1, call())).await;
            anyhow::ensure!(left.is_err(), "it was answered: the model is not known yet");
            Ok(())
        })
        .await;
        let row = sluicegate_tests::eventually("it is booked", Duration::from_secs(10), || async {
            let rows = stack.ledger.of_key(scene.key.id).await?;
            rows.into_iter().find(|row| row.ended != "refused").ok_or_else(|| anyhow::anyhow!("not yet"))
        })
        .await;
        assert_eq!((row.source.as_str(), row.input, row.cost_nano), ("none", 0, Some(0)), "{row:?}");
    });
}
