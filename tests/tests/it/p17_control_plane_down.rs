//! The control plane is away under traffic: no record is lost, none is doubled, and an owner without limits notices nothing.

use std::time::Duration;

use serde_json::json;
use sluicegate_tests::load::Load;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::stack::Stack;
use sluicegate_tests::{Call, Http, alone, send};
use uuid::Uuid;

/// As long as the promise says.
const AWAY: Duration = Duration::from_secs(60);

#[test]
fn a_minute_without_a_control_plane() {
    alone(async {
        let mut stack = Stack::start().await;
        let key = stack.scene("p17").await.key.clone();
        let url = format!("{}/chat/completions", stack.envoy.base_url());
        let load = Load::start(url, key.secret.clone(), chat_body(json!({})).to_string(), 50);
        load.successes(50).await;
        stack.control.process().kill_9().await;
        tokio::time::sleep(AWAY).await;
        let ready = send(Http::H1, stack.envoy.addr(), Call::get("/sluicegate/ready")).await.unwrap();
        assert_eq!(ready.status, 200, "readiness stays");
        let unknown = Call::get("/v1/models").bearer("sk-sg-nobody-0000000000000000");
        assert_eq!(send(Http::H1, stack.envoy.addr(), unknown).await.unwrap().status, 503, "unknown is not a 401 now");
        stack.control.restart().await;
        load.successes(50).await;
        let outcomes = load.stop().await;
        assert!(outcomes.failures().is_empty(), "{:?}", outcomes.failures());
        assert!(outcomes.count("200") > 2_500);
        let operations: Vec<Uuid> = outcomes.operations.iter().map(|o| o.parse().unwrap()).collect();
        stack.ledger.has_each_once(&operations, Duration::from_secs(30)).await;
        stack.ledger.rows(key.id, operations.len()).await;
    });
}
