//! A model's targets: drawn by weight, tried in order.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::ledger::Row;
use sluicegate_tests::side_by_side;
use sluicegate_tests::stack::{CHAT, EMBED};
use sluicegate_tests::{Scene, Stack, eventually};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

/// Makes a model of these targets and waits until every worker of the Envoy works by a policy that has it.
pub(super) async fn model(scene: &Scene<'_>, targets: Value) -> String {
    let name = format!("model-of-{}", scene.tag);
    scene.stack.admin.post("/v1/models", json!({"name": name, "targets": targets})).await.unwrap();
    scene.stack.policy_in_force().await;
    name
}

/// What the ledger has of a request with two attempts.
async fn both_attempts(scene: &Scene<'_>, operation: &str) -> (Row, Row) {
    let mut rows = eventually("both attempts are in the ledger", Duration::from_secs(15), || async {
        let mut rows = scene.stack.ledger.of_key(scene.key.id).await?;
        rows.retain(|row| row.operation.to_string() == operation);
        anyhow::ensure!(rows.len() == 2, "{rows:?}");
        Ok(rows)
    })
    .await;
    rows.sort_by_key(|row| row.attempt);
    let second = rows.pop().unwrap();
    (rows.pop().unwrap(), second)
}

#[test]
fn weights_divide_the_requests() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("weights").await;
        let target = |model: &str, weight: u32| json!({"provider": "scripted", "model": model, "weight": weight});
        let name = model(&scene, json!([target(CHAT, 3), target(EMBED, 1)])).await;
        let mut seen: HashMap<String, u32> = HashMap::new();
        for _ in 0..200 {
            let reply = scene.chat(json!({"model": name})).await.unwrap();
            assert_eq!(reply.status, 200);
            *seen.entry(reply.header("x-sluicegate-backend").unwrap().to_owned()).or_default() += 1;
        }
        // 150 expected, standard deviation 6: five of them.
        let most = seen[&format!("scripted/{CHAT}")];
        assert!((120..=180).contains(&most), "{seen:?}");
        assert_eq!(seen.len(), 2);
    });
}

#[test]
fn a_target_that_cannot_be_reached_is_passed_over_and_costs_nothing() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("order").await;
        let nowhere = format!("nowhere-{}", scene.tag);
        // The discard port: nothing listens there.
        scene.stack.admin.provider(&nowhere, "http://127.0.0.1:9/v1", None).await.unwrap();
        let targets = json!([{"provider": nowhere, "model": CHAT}, {"provider": "scripted", "model": CHAT}]);
        let name = model(&scene, targets).await;
        let reply = scene.chat(json!({"model": name})).await.unwrap();
        assert_eq!((reply.status, reply.header("x-sluicegate-attempts")), (200, Some("2")));
        assert_eq!(reply.header("x-sluicegate-backend"), Some(format!("scripted/{CHAT}").as_str()));
        let (first, second) = both_attempts(&scene, reply.header("x-sluicegate-request-id").unwrap()).await;
        assert_eq!(
            (first.last, first.source.as_str(), first.cost_nano, first.upstream_status),
            (false, "none", Some(0), None)
        );
        assert_eq!((second.last, second.source.as_str(), second.ended.as_str()), (true, "reported", "complete"));
    });
}

/// Takes requests and hangs up on each without a word.
async fn silent_provider() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = vec![0; 64 << 10];
                connection.read(&mut request).await
            });
        }
    });
    addr
}

/// A provider that hung up may have worked on what it was sent: it is booked with its input, estimated.
#[test]
fn a_target_that_hangs_up_is_passed_over_and_its_input_is_estimated() {
    side_by_side(async {
        let scene = Stack::shared().await.scene("hangs-up").await;
        let silent = format!("silent-{}", scene.tag);
        let base_url = format!("http://{}/v1", silent_provider().await);
        scene.stack.admin.provider(&silent, &base_url, None).await.unwrap();
        scene.stack.admin.price(&silent, CHAT, "2.50", "0.25", "10.00").await.unwrap();
        let targets = json!([{"provider": silent, "model": CHAT}, {"provider": "scripted", "model": CHAT}]);
        let name = model(&scene, targets).await;
        let reply = scene.chat(json!({"model": name})).await.unwrap();
        assert_eq!((reply.status, reply.header("x-sluicegate-attempts")), (200, Some("2")));
        let (first, second) = both_attempts(&scene, reply.header("x-sluicegate-request-id").unwrap()).await;
        assert_eq!((first.last, first.source.as_str(), first.ended.as_str()), (false, "estimated", "upstream_cut"));
        assert!(first.input > 0 && first.cost_nano.is_some_and(|cost| cost > 0), "{first:?}");
        assert_eq!((second.last, second.source.as_str(), second.ended.as_str()), (true, "reported", "complete"));
    });
}
