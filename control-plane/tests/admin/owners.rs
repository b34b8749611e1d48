//! Blocking and deleting owners of many keys.

use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serde_json::json;
use sluicegate_core::noun::OwnerKind;
use sluicegate_core::state::blocked::MAX_BLOCKED;

use crate::fixture::Gate;

const KEYS: i64 = 10_000;

/// Gives an org that many keys, behind the API's back.
async fn fill(gate: &Gate, org: &str) {
    gate.created("/v1/keys", json!({"org": org, "name": "first"})).await;
    sqlx::query(
        "insert into api_key (public_id, hash, name, org_id, profile_id)
         select 'id' || i, sha256(int8send(i)), 'k' || i, k.org_id, k.profile_id
         from generate_series(2, $1::bigint) i, api_key k where k.name = 'first'",
    )
    .bind(KEYS)
    .execute(&gate.pool)
    .await
    .unwrap();
}

async fn blocked(gate: &Gate) -> Vec<(i16, i32, bool)> {
    sqlx::query_as("select kind, id, gone_at is not null from blocked_owner order by kind, id")
        .fetch_all(&gate.pool)
        .await
        .unwrap()
}

#[tokio::test]
async fn blocking_an_org_is_one_small_write_however_many_keys_it_has() {
    let gate = Gate::stocked().await;
    fill(&gate, "acme").await;
    let before = gate.counters().await;
    let started = Instant::now();
    let org = gate.post("/v1/orgs/acme/block", json!({})).await;
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(org["blocked"], json!(true));
    let after = gate.counters().await;
    assert_eq!((after.blocks, after.keys), (before.revision + 1, before.keys));
    let id = i32::try_from(org["id"].as_i64().unwrap()).unwrap();
    assert_eq!(blocked(&gate).await, [(OwnerKind::Org as i16, id, false)]);
    // Again: nothing new.
    gate.post("/v1/orgs/acme/block", json!({})).await;
    assert_eq!(gate.counters().await, after);
    assert_eq!(gate.post("/v1/orgs/acme/unblock", json!({})).await["blocked"], json!(false));
    assert_eq!(gate.counters().await.blocks, after.revision + 1);
    assert!(blocked(&gate).await.is_empty());
}

#[tokio::test]
async fn deleting_an_org_says_so_for_every_key_in_one_commit() {
    let gate = Gate::stocked().await;
    fill(&gate, "acme").await;
    gate.created("/v1/orgs", json!({"name": "other"})).await;
    gate.created("/v1/keys", json!({"org": "other", "name": "stays"})).await;
    let mut prefixes: Vec<i32> = sqlx::query_scalar(
        "select ('x' || encode(substr(hash, 1, 4), 'hex'))::bit(32)::int from api_key where name <> 'stays'",
    )
    .fetch_all(&gate.pool)
    .await
    .unwrap();
    assert_eq!(prefixes.len(), usize::try_from(KEYS).unwrap());
    let id = gate.get("/v1/orgs/acme").await["id"].as_i64().unwrap();
    gate.deleted("/v1/orgs/acme").await;
    let after = gate.counters().await;
    assert_eq!((after.keys, after.blocks), (after.revision, after.revision));
    prefixes.sort_unstable();
    prefixes.dedup();
    assert_eq!(gate.key_changes(after.revision).await, prefixes);
    assert_eq!(blocked(&gate).await, [(OwnerKind::Org as i16, i32::try_from(id).unwrap(), true)]);
    let left: Vec<String> = sqlx::query_scalar("select name from api_key").fetch_all(&gate.pool).await.unwrap();
    assert_eq!(left, ["stays"]);
}

#[tokio::test]
async fn a_gone_owner_is_forgotten_after_a_day_and_a_blocked_one_is_not() {
    let gate = Gate::stocked().await;
    gate.created("/v1/orgs", json!({"name": "other"})).await;
    gate.post("/v1/orgs/other/block", json!({})).await;
    gate.deleted("/v1/orgs/acme").await;
    gate.store.forget_gone_owners().await.unwrap();
    assert_eq!(blocked(&gate).await.len(), 2);
    sqlx::query("update blocked_owner set gone_at = gone_at - interval '25 hours'").execute(&gate.pool).await.unwrap();
    assert_eq!(gate.store.forget_gone_owners().await.unwrap(), 1);
    assert_eq!(blocked(&gate).await.len(), 1);
}

/// Blocks `count` users that nobody needs to have made, behind the API's back.
async fn block_many(gate: &Gate, count: usize) {
    sqlx::query("insert into blocked_owner (kind, id) select $1, 1000000 + i from generate_series(1, $2::bigint) i")
        .bind(OwnerKind::User as i16)
        .bind(i64::try_from(count).unwrap())
        .execute(&gate.pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn no_more_owners_are_blocked_than_an_envoy_holds() {
    let gate = Gate::stocked().await;
    for org in ["gone", "one", "two"] {
        gate.created("/v1/orgs", json!({"name": org})).await;
    }
    block_many(&gate, MAX_BLOCKED - 1).await;
    gate.deleted("/v1/orgs/gone").await;
    // Who is gone makes room.
    gate.post("/v1/orgs/acme/block", json!({})).await;
    assert_eq!(gate.refused(Method::POST, "/v1/orgs/one/block", json!({})).await.0, "conflict");
    let (_, answer) = gate.call(Method::POST, "/v1/orgs/one/block", Some(json!({}))).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains(&MAX_BLOCKED.to_string()), "{answer}");
    assert_eq!(gate.get("/v1/orgs/one").await["blocked"], json!(false));
    // Deleting is never refused, and a list that is too long may become shorter.
    gate.deleted("/v1/orgs/one").await;
    sqlx::query("insert into blocked_owner (kind, id) values (1, 999999)").execute(&gate.pool).await.unwrap();
    gate.post("/v1/orgs/acme/unblock", json!({})).await;
    assert_eq!(blocked(&gate).await.len(), MAX_BLOCKED);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_two_that_take_the_last_place_one_is_refused() {
    let gate = Gate::stocked().await;
    block_many(&gate, MAX_BLOCKED - 1).await;
    let orgs = ["a", "b", "c", "d"];
    for org in orgs {
        gate.created("/v1/orgs", json!({"name": org})).await;
    }
    let paths = orgs.map(|org| format!("/v1/orgs/{org}/block"));
    let answers = paths.iter().map(|path| gate.call(Method::POST, path, Some(json!({}))));
    let answers = futures::future::join_all(answers).await;
    let count = |status| answers.iter().filter(|(got, _)| *got == status).count();
    assert_eq!((count(StatusCode::OK), count(StatusCode::CONFLICT)), (1, 3), "{answers:?}");
}

#[tokio::test]
async fn a_list_that_is_too_long_is_cut_for_envoys() {
    let gate = Gate::stocked().await;
    block_many(&gate, MAX_BLOCKED + 1).await;
    gate.deleted("/v1/orgs/acme").await;
    let mut reader = gate.store.feed_reader().await.unwrap();
    let listed = reader.read(None, &mut |_| {}).await.unwrap().blocked.unwrap();
    assert_eq!(listed.len(), MAX_BLOCKED);
    assert!(listed.iter().all(|owner| owner.kind == OwnerKind::User), "who is gone is left out first");
}

#[tokio::test]
async fn who_was_blocked_and_went_with_the_org_is_forgotten_too() {
    let gate = Gate::stocked().await;
    gate.created("/v1/users", json!({"org": "acme", "name": "ada"})).await;
    gate.post("/v1/users/ada/block", json!({})).await;
    gate.deleted("/v1/orgs/acme").await;
    gate.store.forget_gone_owners().await.unwrap();
    assert_eq!(blocked(&gate).await.iter().map(|(.., gone)| *gone).collect::<Vec<_>>(), [true, true]);
}

#[tokio::test]
async fn deleting_a_team_takes_its_users_and_their_keys() {
    let gate = Gate::stocked().await;
    gate.created("/v1/teams", json!({"org": "acme", "name": "red"})).await;
    gate.created("/v1/users", json!({"org": "acme", "name": "ada", "team": "red"})).await;
    gate.created("/v1/keys", json!({"org": "acme", "name": "hers", "user": "ada"})).await;
    gate.created("/v1/keys", json!({"org": "acme", "name": "teams", "team": "red"})).await;
    gate.created("/v1/keys", json!({"org": "acme", "name": "orgs"})).await;
    gate.deleted("/v1/teams/red").await;
    assert_eq!(gate.key_changes(gate.counters().await.revision).await.len(), 2);
    let keys = gate.get("/v1/keys").await;
    assert_eq!(keys["items"].as_array().unwrap().len(), 1);
    assert_eq!(gate.call(Method::GET, "/v1/users/ada", None).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_name_that_several_orgs_have_wants_its_org() {
    let gate = Gate::stocked().await;
    gate.created("/v1/orgs", json!({"name": "other"})).await;
    for org in ["acme", "other"] {
        gate.created("/v1/teams", json!({"org": org, "name": "red"})).await;
    }
    assert_eq!(gate.call(Method::GET, "/v1/teams/red", None).await.0, StatusCode::CONFLICT);
    assert_eq!(gate.get("/v1/teams/other%2Fred").await["org"], "other");
}
