//! Control plane, Postgres or Envoy is killed under 200 requests a second: known keys are served, unknown ones get 503,
//! recovery needs nobody, and what was sent is what was recorded.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use sluicegate_tests::load::{Load, Outcomes};
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::stack::{Stack, Wanted};
use sluicegate_tests::{Call, Http, alone, eventually, send};
use test_postgres::Postgres;
use uuid::Uuid;

const PER_SECOND: u32 = 200;
/// Longer than a 401 stays possible after the last mark (10 s).
const AWAY: Duration = Duration::from_secs(12);

async fn load(stack: &Stack) -> (i32, Load) {
    let scene = stack.scene("p29").await;
    let url = format!("{}/chat/completions", stack.envoy.base_url());
    let load = Load::start(url, scene.key.secret.clone(), chat_body(json!({})).to_string(), PER_SECOND);
    load.successes(200).await;
    (scene.key.id, load)
}

async fn status_of_an_unknown_key(stack: &Stack) -> anyhow::Result<u16> {
    let call = Call::get("/v1/models").bearer("sk-sg-nobody-00000000000000000000");
    Ok(send(Http::H1, stack.envoy.addr(), call).await?.status)
}

async fn unknown_key_gets(stack: &Stack, wanted: u16, within: Duration) {
    eventually("an unknown key is answered right", within, || async {
        let status = status_of_an_unknown_key(stack).await?;
        ensure!(status == wanted, "{status} instead of {wanted}");
        Ok(())
    })
    .await;
}

fn operations(outcomes: &Outcomes) -> Vec<Uuid> {
    outcomes.operations.iter().map(|o| o.parse().expect("an operation id")).collect()
}

/// Every request was answered, and stands in the ledger once.
async fn nothing_lost(stack: &Stack, key: i32, outcomes: Outcomes) {
    assert!(outcomes.failures().is_empty(), "{:?}", outcomes.failures());
    let operations = operations(&outcomes);
    assert_eq!(operations.len() as u64, outcomes.sent);
    stack.ledger.has_each_once(&operations, Duration::from_secs(30)).await;
    stack.ledger.rows(key, operations.len()).await;
}

#[test]
fn the_control_plane_is_killed() {
    alone(async {
        let mut stack = Stack::start().await;
        let (key, load) = load(&stack).await;
        unknown_key_gets(&stack, 401, Duration::from_secs(1)).await;
        stack.control.process().kill_9().await;
        unknown_key_gets(&stack, 503, AWAY).await;
        load.successes(100).await;
        stack.control.restart().await;
        unknown_key_gets(&stack, 401, Duration::from_secs(10)).await;
        load.successes(100).await;
        nothing_lost(&stack, key, load.stop().await).await;
    });
}

#[test]
fn postgres_is_killed() {
    alone(async {
        let mut server = Postgres::start().await;
        let database = server.migrated().await;
        let stack = Stack::with(Wanted { database: Some(database), ..Wanted::default() }).await;
        let (key, load) = load(&stack).await;
        server.kill_9().await;
        unknown_key_gets(&stack, 503, AWAY).await;
        load.successes(100).await;
        server.restart().await;
        unknown_key_gets(&stack, 401, Duration::from_secs(15)).await;
        load.successes(100).await;
        nothing_lost(&stack, key, load.stop().await).await;
    });
}

#[test]
fn envoy_is_killed() {
    alone(async {
        let mut stack = Stack::start().await;
        let (_, load) = load(&stack).await;
        stack.envoy.process().kill_9().await;
        eventually("clients notice", Duration::from_secs(5), || async {
            ensure!(!load.outcomes().failures().is_empty());
            Ok(())
        })
        .await;
        stack.envoy.restart().await;
        stack.envoy.ready().await;
        load.successes(400).await;
        let outcomes = load.stop().await;
        // A new Envoy says 503 until it has its state; it never says 401 and never lets one pass unchecked.
        assert_eq!(
            outcomes.counts.keys().find(|o| o.starts_with("401") || o.starts_with("403")),
            None,
            "{:?}",
            outcomes.counts
        );

        let operations = operations(&outcomes);
        // The ledger is behind by what is still on its way.
        let settled = || async {
            let (missing, doubled) = stack.ledger.missing_and_doubled(&operations).await?;
            ensure!(missing < 100, "{missing} missing");
            Ok((missing, doubled))
        };
        let before = eventually("the ledger catches up", Duration::from_secs(15), settled).await;
        let log = stack.control.access_log();
        stack.control.cli(&["reconcile", &log.to_string_lossy()]).await.unwrap();
        let after = stack.ledger.missing_and_doubled(&operations).await.unwrap();
        println!("of {} answered: {} missing before reconcile, {} after", operations.len(), before.0, after.0);
        assert_eq!((before.1, after.1), (0, 0), "nothing is booked twice");
        assert!(after.0 <= 20, "{} lost by both witnesses", after.0);
    });
}
