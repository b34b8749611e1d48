//! A key's life.

use http::{Method, StatusCode};
use prost::Message as _;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sluicegate_core::proto::dataplane::ProfileBody;

use crate::fixture::Gate;

fn prefix_of(secret: &str) -> i32 {
    let hash = Sha256::digest(secret.as_bytes());
    i32::from_be_bytes(hash[..4].try_into().unwrap())
}

fn secret(answer: &Value) -> String {
    answer["secret"].as_str().unwrap().to_owned()
}

async fn profile(gate: &Gate, key: &Value) -> (i32, ProfileBody) {
    let (id, body): (i32, Vec<u8>) =
        sqlx::query_as("select p.id, p.body from api_key k join profile p on p.id = k.profile_id where k.id = $1")
            .bind(i32::try_from(key["id"].as_i64().unwrap()).unwrap())
            .fetch_one(&gate.pool)
            .await
            .unwrap();
    (id, ProfileBody::decode(body.as_slice()).unwrap())
}

#[tokio::test]
async fn a_key_is_shown_once_and_stored_as_its_hash() {
    let gate = Gate::stocked().await;
    let key = gate.created("/v1/keys", json!({"org": "acme", "name": "ci"})).await;
    let secret = secret(&key);
    assert!(secret.starts_with(&format!("sk-sg-{}-", key["key_id"].as_str().unwrap())));
    let hash: Vec<u8> = sqlx::query_scalar("select hash from api_key").fetch_one(&gate.pool).await.unwrap();
    assert_eq!(hash, Sha256::digest(secret.as_bytes()).to_vec());
    for reference in ["acme%2Fci", "ci", key["key_id"].as_str().unwrap(), &key["id"].to_string()] {
        let read = gate.get(&format!("/v1/keys/{reference}")).await;
        assert_eq!(read["id"], key["id"]);
        assert!(read.get("secret").is_none() && !read.to_string().contains(&secret));
    }
    let counters = gate.counters().await;
    assert_eq!(counters.keys, counters.revision);
    assert_eq!(gate.key_changes(counters.revision).await, [prefix_of(&secret)]);
}

#[tokio::test]
async fn rotating_kills_the_old_secret_and_changes_both_buckets() {
    let gate = Gate::stocked().await;
    let old = secret(&gate.created("/v1/keys", json!({"org": "acme", "name": "ci"})).await);
    let rotated = gate.post("/v1/keys/ci/rotate", json!({})).await;
    let new = secret(&rotated);
    assert_ne!(old, new);
    let mut expected = [prefix_of(&old), prefix_of(&new)];
    expected.sort_unstable();
    assert_eq!(gate.key_changes(gate.counters().await.revision).await, expected);
    let hashes: Vec<Vec<u8>> = sqlx::query_scalar("select hash from api_key").fetch_all(&gate.pool).await.unwrap();
    assert_eq!(hashes, [Sha256::digest(new.as_bytes()).to_vec()]);
}

#[tokio::test]
async fn revoking_deletes_it_and_says_so_to_the_change_log() {
    let gate = Gate::stocked().await;
    let key = secret(&gate.created("/v1/keys", json!({"org": "acme", "name": "ci"})).await);
    gate.deleted("/v1/keys/ci").await;
    assert_eq!(gate.key_changes(gate.counters().await.revision).await, [prefix_of(&key)]);
    assert_eq!(gate.call(Method::GET, "/v1/keys/ci", None).await.0, StatusCode::NOT_FOUND);
    assert_eq!(gate.call(Method::DELETE, "/v1/keys/ci", None).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_update_changes_what_it_names_and_nothing_else() {
    let gate = Gate::stocked().await;
    let rights = json!({"org": "acme", "name": "ci", "models": ["gpt-4o"], "networks": ["10.0.0.0/8", "192.0.2.7"]});
    let key = gate.created("/v1/keys", rights).await;
    assert_eq!(key["networks"], json!(["10.0.0.0/8", "192.0.2.7/32"]));
    let read = gate.patched("/v1/keys/ci", json!({"expires_at": "2030-01-01T00:00:00Z", "disabled": true})).await;
    assert_eq!((&read["expires_at"], &read["disabled"]), (&json!("2030-01-01T00:00:00Z"), &json!(true)));
    assert_eq!((&read["models"], &read["key_id"]), (&json!(["gpt-4o"]), &key["key_id"]));
    let read = gate.patched("/v1/keys/ci", json!({"models": null, "expires_at": null})).await;
    assert!(read.get("models").is_none() && read.get("expires_at").is_none());
    assert_eq!(read["disabled"], json!(true));
    assert!(profile(&gate, &read).await.1.any_model);
}

#[tokio::test]
async fn an_update_that_changes_nothing_takes_no_revision() {
    let gate = Gate::stocked().await;
    gate.created("/v1/keys", json!({"org": "acme", "name": "ci", "models": ["gpt-4o"]})).await;
    let before = gate.counters().await;
    gate.patched("/v1/keys/ci", json!({"models": ["gpt-4o"], "disabled": false})).await;
    assert_eq!(gate.counters().await, before);
}

#[tokio::test]
async fn equal_rights_share_a_profile_and_no_two_profiles_share_a_slot() {
    let gate = Gate::stocked().await;
    let body = |name: &str, networks: Value| json!({"org": "acme", "name": name, "networks": networks});
    let a = gate.created("/v1/keys", body("a", json!(["10.0.0.0/8", "192.0.2.0/24"]))).await;
    let b = gate.created("/v1/keys", body("b", json!(["192.0.2.0/24", "10.0.0.0/8"]))).await;
    let (id, content) = profile(&gate, &a).await;
    assert_eq!(profile(&gate, &b).await.0, id);
    assert_eq!(content.networks.len(), 2);
    // The next id of the sequence would share the slot of the one that lives.
    sqlx::query("select setval('profile_id', $1)").bind(i64::from(id + 4095)).execute(&gate.pool).await.unwrap();
    let c = gate.created("/v1/keys", body("c", json!([]))).await;
    assert_eq!(profile(&gate, &c).await.0, id + 4097);
}

#[tokio::test]
async fn profiles_nobody_uses_make_room() {
    let gate = Gate::stocked().await;
    sqlx::query("insert into profile (id, body) select i, int4send(i) from generate_series(1, 4096) i")
        .execute(&gate.pool)
        .await
        .unwrap();
    sqlx::query("select setval('profile_id', 4096)").execute(&gate.pool).await.unwrap();
    gate.created("/v1/keys", json!({"org": "acme", "name": "a"})).await;
    let left: i64 = sqlx::query_scalar("select count(*) from profile").fetch_one(&gate.pool).await.unwrap();
    assert_eq!(left, 1);
}

#[tokio::test]
async fn a_users_key_is_in_the_users_team_wherever_that_is() {
    let gate = Gate::stocked().await;
    for team in ["red", "blue"] {
        gate.created("/v1/teams", json!({"org": "acme", "name": team})).await;
    }
    gate.created("/v1/users", json!({"org": "acme", "name": "ada@acme.com", "team": "red"})).await;
    let key = gate.created("/v1/keys", json!({"org": "acme", "name": "ada", "user": "ada@acme.com"})).await;
    assert_eq!(key["team"], "red");
    let other = json!({"org": "acme", "name": "x", "user": "ada@acme.com", "team": "blue"});
    assert_eq!(gate.refused(Method::POST, "/v1/keys", other).await.1, "team");
    gate.patched("/v1/users/ada@acme.com", json!({"team": "blue"})).await;
    assert_eq!(gate.get("/v1/keys/ada").await["team"], "blue");
    assert_eq!(gate.key_changes(gate.counters().await.revision).await, [prefix_of(&secret(&key))]);
}

#[tokio::test]
async fn a_key_given_by_its_hash_has_no_secret_and_is_unique() {
    let gate = Gate::stocked().await;
    let hash = hex::encode(Sha256::digest(b"sk-sg-made-elsewhere"));
    let key = gate.created("/v1/keys", json!({"org": "acme", "name": "a", "hash": hash})).await;
    assert_eq!(key["secret"], Value::Null);
    let again = json!({"org": "acme", "name": "b", "hash": hash});
    assert_eq!(gate.refused(Method::POST, "/v1/keys", again).await, ("conflict".to_owned(), "hash".to_owned()));
}

#[tokio::test]
async fn a_bad_key_names_its_field() {
    let gate = Gate::stocked().await;
    gate.created("/v1/keys", json!({"org": "acme", "name": "taken"})).await;
    for (change, field) in [
        (json!({"org": "nobody"}), "org"),
        (json!({"name": ""}), "name"),
        (json!({"name": "123"}), "name"),
        (json!({"name": "taken"}), "name"),
        (json!({"team": "none"}), "team"),
        (json!({"user": "none"}), "user"),
        (json!({"models": ["gpt-4o", "gpt-6"]}), "models[1]"),
        (json!({"models": ["gpt-4o", "gpt-4o"]}), "models[1]"),
        (json!({"networks": ["10.0.0.0/8", "10.0.0.1/8"]}), "networks[1]"),
        (json!({"expires_at": "tomorrow"}), "expires_at"),
        (json!({"hash": "abc"}), "hash"),
        (json!({"modles": []}), "modles"),
    ] {
        let mut body = json!({"org": "acme", "name": "ci"});
        for (name, value) in change.as_object().unwrap() {
            body[name] = value.clone();
        }
        assert_eq!(gate.refused(Method::POST, "/v1/keys", body).await.1, field, "{change}");
    }
}
