//! Several writers at once.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use sqlx::postgres::PgListener;

use crate::fixture::Gate;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn revisions_are_counted_in_the_order_of_commits() {
    let gate = Gate::stocked().await;
    let mut listener = PgListener::connect(&gate.url).await.unwrap();
    listener.listen("sluicegate").await.unwrap();
    let before = gate.counters().await.revision;
    let writers = (0..8).map(|writer| {
        let gate = &gate;
        async move {
            for i in 0..10 {
                let model =
                    json!({"name": format!("m{writer}-{i}"), "targets": [{"provider": "openai", "model": "x"}]});
                gate.created("/v1/models", model).await;
                gate.created("/v1/keys", json!({"org": "acme", "name": format!("k{writer}-{i}")})).await;
            }
        }
    });
    futures::future::join_all(writers).await;
    // Postgres delivers notifications in the order of commits.
    let mut heard = Vec::new();
    while heard.last() != Some(&(before + 160)) {
        let next = tokio::time::timeout(Duration::from_secs(10), listener.recv()).await.unwrap().unwrap();
        heard.push(next.payload().parse::<i64>().unwrap());
    }
    assert_eq!(heard, (before + 1..=before + 160).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_writers_change_is_missing_from_the_last_policy() {
    let gate = Gate::stocked().await;
    let writers = (0..16).map(|writer| {
        let gate = &gate;
        async move {
            // Backends of their own: nothing but the counter makes them wait for each other.
            let target = json!({"provider": "openai", "model": format!("x{writer}")});
            let model = json!({"name": format!("m{writer}"), "targets": [target]});
            gate.created("/v1/models", model).await;
        }
    });
    futures::future::join_all(writers).await;
    let names: BTreeSet<String> = gate.snapshot().await.models.into_iter().map(|m| m.name).collect();
    assert_eq!(names.len(), 17);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn profiles_made_at_once_never_share_a_slot() {
    let gate = Gate::stocked().await;
    let writers = (0..16).map(|i| {
        let gate = &gate;
        async move {
            let network = format!("10.{}.0.0/16", i / 2);
            gate.created("/v1/keys", json!({"org": "acme", "name": format!("k{i}"), "networks": [network]})).await;
        }
    });
    futures::future::join_all(writers).await;
    let ids: Vec<i32> = sqlx::query_scalar("select id from profile").fetch_all(&gate.pool).await.unwrap();
    let slots: BTreeSet<i32> = ids.iter().map(|id| id % 4096).collect();
    assert_eq!((ids.len(), slots.len()), (8, 8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_key_made_while_its_org_is_deleted_is_refused_or_deleted() {
    let gate = Gate::stocked().await;
    for round in 0..10 {
        let org = format!("org{round}");
        gate.created("/v1/orgs", json!({"name": org})).await;
        let body = json!({"org": org, "name": "k"});
        let (_, (status, answer)) = futures::join!(
            async { gate.deleted(&format!("/v1/orgs/{org}")).await },
            gate.call(http::Method::POST, "/v1/keys", Some(body))
        );
        let deleted_after_creation = status == http::StatusCode::CREATED || status == http::StatusCode::NOT_FOUND;
        assert!(deleted_after_creation || status.is_client_error(), "{status} {answer}");
    }
    let keys: i64 = sqlx::query_scalar("select count(*) from api_key").fetch_one(&gate.pool).await.unwrap();
    assert_eq!(keys, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_changes_of_one_noun_are_both_kept() {
    let gate = Gate::stocked().await;
    gate.created("/v1/keys", json!({"org": "acme", "name": "ci"})).await;
    for round in 0..20 {
        let disabled = round % 2 == 0;
        let year = 2030 + round;
        futures::join!(
            gate.patched("/v1/keys/ci", json!({"disabled": disabled})),
            gate.patched("/v1/keys/ci", json!({"expires_at": format!("{year}-01-01T00:00:00Z")})),
            gate.patched("/v1/keys/ci", json!({"networks": [format!("10.0.0.{round}/32")]})),
        );
        let key = gate.get("/v1/keys/ci").await;
        assert_eq!(key["disabled"], json!(disabled));
        assert_eq!(key["expires_at"], json!(format!("{year}-01-01T00:00:00Z")));
        assert_eq!(key["networks"], json!([format!("10.0.0.{round}/32")]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_owner_blocked_while_it_is_deleted_stays_in_the_list_only_as_gone() {
    let gate = Gate::stocked().await;
    for round in 0..10 {
        let org = format!("org{round}");
        gate.created("/v1/orgs", json!({"name": org})).await;
        let block = format!("/v1/orgs/{org}/block");
        futures::join!(
            async { gate.deleted(&format!("/v1/orgs/{org}")).await },
            gate.call(http::Method::POST, &block, Some(json!({})))
        );
    }
    let for_ever: i64 = sqlx::query_scalar("select count(*) from blocked_owner where gone_at is null")
        .fetch_one(&gate.pool)
        .await
        .unwrap();
    assert_eq!(for_ever, 0);
}
