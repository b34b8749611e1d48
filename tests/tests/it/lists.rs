//! A model's targets: drawn by weight, tried in order.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::side_by_side;
use sluicegate_tests::stack::{CHAT, EMBED};
use sluicegate_tests::{Scene, Stack, eventually};

/// Makes a model of these targets and waits until every worker of the Envoy works by a policy that has it.
async fn model(scene: &Scene<'_>, targets: Value) -> String {
    let name = format!("model-of-{}", scene.tag);
    scene.stack.admin.post("/v1/models", json!({"name": name, "targets": targets})).await.unwrap();
    scene.stack.policy_in_force().await;
    name
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
        let operation = reply.header("x-sluicegate-request-id").unwrap().to_owned();

        let rows = eventually("both attempts are in the ledger", Duration::from_secs(15), || async {
            let rows = scene.stack.ledger.of_key(scene.key.id).await?;
            let mine: Vec<_> = rows.into_iter().filter(|r| r.operation.to_string() == operation).collect();
            anyhow::ensure!(mine.len() == 2, "{mine:?}");
            Ok(mine)
        })
        .await;
        let of = |n: i32| rows.iter().find(|r| r.attempt == n).unwrap();
        let (first, second) = (of(1), of(2));
        assert_eq!(
            (first.last, first.source.as_str(), first.cost_nano, first.upstream_status),
            (false, "none", Some(0), None)
        );
        assert_eq!((second.last, second.source.as_str(), second.ended.as_str()), (true, "reported", "complete"));
    });
}
