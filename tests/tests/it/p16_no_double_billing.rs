//! One record per attempt under one operation id: nothing is billed twice after a lost ack or a stop of the control plane.

use std::time::Duration;

use serde_json::json;
use sluicegate_tests::alone;
use sluicegate_tests::fault::Wire;
use sluicegate_tests::load::Load;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::stack::{INPUT_NANO, OUTPUT_NANO, Stack, Wanted};
use uuid::Uuid;

#[test]
fn lost_acks_and_a_stopped_control_plane() {
    alone(async {
        let mut stack = Stack::with(Wanted { faults: true, ..Wanted::default() }).await;
        let (key, load) = {
            let scene = stack.scene("p16").await;
            let url = format!("{}/chat/completions", stack.envoy.base_url());
            (scene.key.clone(), Load::start(url, scene.key.secret.clone(), chat_body(json!({})).to_string(), 100))
        };
        load.successes(50).await;
        // Records are committed, but many acks die with their connection.
        for _ in 0..10 {
            stack.faults().reset_once();
            load.successes(20).await;
        }
        // The wire holds what was sent, so that the acks are late, then lost.
        stack.faults().set(Wire::Late(Duration::from_millis(100)));
        load.successes(50).await;
        stack.faults().set(Wire::Reset);
        load.successes(50).await;
        stack.faults().set(Wire::Good);
        // A stop in order, and one by force.
        stack.control.process().terminate().await;
        load.successes(50).await;
        stack.control.restart().await;
        load.successes(50).await;
        stack.control.process().kill_9().await;
        load.successes(50).await;
        stack.control.restart().await;
        load.successes(50).await;

        let outcomes = load.stop().await;
        assert!(outcomes.failures().is_empty(), "{:?}", outcomes.failures());
        let operations: Vec<Uuid> = outcomes.operations.iter().map(|o| o.parse().unwrap()).collect();
        stack.ledger.has_each_once(&operations, Duration::from_secs(30)).await;
        let n = operations.len();
        let rows = stack.ledger.rows(key.id, n).await;
        assert!(rows.iter().all(|r| r.attempt == 1 && r.last && r.source == "reported"));
        let n = i64::try_from(n).unwrap();
        let cost = n * (12 * INPUT_NANO + 7 * OUTPUT_NANO);
        assert_eq!(stack.ledger.rolled_up(key.id).await.unwrap(), (n, n, cost), "the roll-up counts each row once");
    });
}
