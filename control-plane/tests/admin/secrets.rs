//! Secrets stay where they belong.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sluicegate::credentials::{Keyring, KeyringError, Secret, Source, resolve};
use sluicegate::store::{Seeds, WriteError};

use crate::fixture::{Gate, PROVIDER_SECRET};

/// Everything in every table, as text.
async fn all_rows(gate: &Gate) -> String {
    let tables: Vec<String> = sqlx::query_scalar("select tablename::text from pg_tables where schemaname = 'public'")
        .fetch_all(&gate.pool)
        .await
        .unwrap();
    let mut all = String::new();
    for table in tables {
        let sql = format!("select coalesce(string_agg(t::text, E'\\n'), '') from \"{table}\" t");
        let rows: String = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&gate.pool).await.unwrap();
        all.push_str(&rows);
    }
    all
}

/// That no model uses, so that it may have any number of credentials.
async fn other_provider(gate: &Gate) {
    gate.created("/v1/providers", json!({"name": "other", "dialect": "openai", "base_url": "https://a.example"})).await;
}

/// The ids of all credentials, by their place in an Envoy.
async fn places(gate: &Gate) -> Vec<i32> {
    sqlx::query_scalar("select id % 4096 from credential order by 1").fetch_all(&gate.pool).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn credentials_made_at_once_never_share_a_place() {
    let gate = Gate::stocked().await;
    other_provider(&gate).await;
    let taken = places(&gate).await;
    // Each round of the sequence comes by the one that is there.
    for round in 1..4 {
        let next = i64::from(taken[0] - 2 + round * 4096);
        sqlx::query("select setval('credential_id_seq', $1)").bind(next).execute(&gate.pool).await.unwrap();
        let made = (0..8).map(|i| {
            let credential = json!({"name": format!("c{round}-{i}"), "provider": "other", "source": "env:X"});
            gate.created("/v1/credentials", credential)
        });
        futures::future::join_all(made).await;
    }
    let mut places = places(&gate).await;
    assert_eq!(places.len(), 25);
    places.dedup();
    assert_eq!(places.len(), 25);
}

#[tokio::test]
async fn there_are_no_more_credentials_than_an_envoy_holds() {
    let gate = Gate::stocked().await;
    other_provider(&gate).await;
    sqlx::query(
        "insert into credential (provider_id, name, source) select p.id, 'c' || i, 'env:X'
         from provider p, generate_series(2, 4096) i where p.name = 'other'",
    )
    .execute(&gate.pool)
    .await
    .unwrap();
    let one_more = json!({"name": "more", "provider": "other", "source": "env:X"});
    assert_eq!(gate.refused(Method::POST, "/v1/credentials", one_more.clone()).await.0, "conflict");
    gate.deleted("/v1/credentials/c77").await;
    gate.created("/v1/credentials", one_more).await;
}

#[tokio::test]
async fn no_secret_is_in_any_answer_or_any_table() {
    let gate = Gate::stocked().await;
    let key = gate.created("/v1/keys", json!({"org": "acme", "name": "ci"})).await;
    let rotated = gate.post("/v1/keys/ci/rotate", json!({})).await;
    let node = gate.created("/v1/node-tokens", json!({"name": "edge"})).await;
    let second = "sk-provider-canary-second";
    let credential = gate.patched("/v1/credentials/main", json!({"secret": second})).await;
    let text = |value: &Value, field: &str| value[field].as_str().unwrap().to_owned();
    let canaries = [
        PROVIDER_SECRET.to_owned(),
        second.to_owned(),
        text(&key, "secret"),
        text(&rotated, "secret"),
        text(&node, "token"),
        text(&node, "seal_key"),
    ];
    let mut seen = credential.to_string();
    let lists = [
        "providers",
        "credentials",
        "models",
        "prices",
        "orgs",
        "teams",
        "users",
        "keys",
        "groups",
        "node-tokens",
        "envoys",
        "audit",
        "usage",
        "export",
    ];
    for list in lists {
        seen.push_str(&gate.get(&format!("/v1/{list}")).await.to_string());
    }
    seen.push_str(&all_rows(&gate).await);
    // Bytes are shown in hex.
    for canary in canaries {
        assert!(!seen.contains(&canary) && !seen.contains(&hex::encode(&canary)), "{canary}");
    }
}

#[tokio::test]
async fn replacing_a_stored_secret_is_audited_and_takes_a_credential_revision() {
    let gate = Gate::stocked().await;
    let credential = gate.patched("/v1/credentials/main", json!({"secret": "sk-second"})).await;
    let counters = gate.counters().await;
    assert_eq!(counters.credentials, counters.revision);
    assert_eq!(credential["revision"], json!(counters.revision));
    assert_eq!(gate.get("/v1/audit?limit=1").await["items"][0]["detail"], json!({"secret": "replaced"}));
    let (id, sealed): (i32, Vec<u8>) =
        sqlx::query_as("select id, sealed from credential").fetch_one(&gate.pool).await.unwrap();
    let secret = resolve(id.cast_unsigned(), &Source::Stored, Some(&sealed), &gate.keyring).await.unwrap();
    assert_eq!(secret.expose(), "sk-second");
    // Not in the place of another credential.
    assert!(resolve(id.cast_unsigned() + 1, &Source::Stored, Some(&sealed), &gate.keyring).await.is_err());
    // A reference takes the stored one away.
    gate.patched("/v1/credentials/main", json!({"source": "env:ELSEWHERE"})).await;
    let sealed: Option<Vec<u8>> =
        sqlx::query_scalar("select sealed from credential").fetch_one(&gate.pool).await.unwrap();
    assert_eq!(sealed, None);
    let back = gate.refused(Method::PATCH, "/v1/credentials/main", json!({"source": "stored"})).await;
    assert_eq!(back.1, "secret");
}

#[tokio::test]
async fn a_credential_names_what_is_wrong_with_it() {
    let gate = Gate::stocked().await;
    gate.created("/v1/providers", json!({"name": "p", "dialect": "openai", "base_url": "https://p.example"})).await;
    for (change, field) in [
        (json!({}), "secret"),
        (json!({"secret": "two\nlines"}), "secret"),
        (json!({"secret": ""}), "secret"),
        (json!({"secret": "x", "source": "env:X"}), "secret"),
        (json!({"source": "vault:x"}), "source"),
        (json!({"source": "env:X", "provider": "nobody"}), "provider"),
    ] {
        let mut body = json!({"name": "c", "provider": "p"});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert_eq!(gate.refused(Method::POST, "/v1/credentials", body).await.1, field, "{change}");
    }
}

#[tokio::test]
async fn a_file_is_read_each_time() {
    let gate = Gate::new().await;
    let path = std::env::temp_dir().join(format!("sluicegate-credential-{}", std::process::id()));
    let source: Source = format!("file:{}", path.display()).parse().unwrap();
    for secret in ["first", "second"] {
        std::fs::write(&path, format!("{secret}\n")).unwrap();
        assert_eq!(resolve(1, &source, None, &gate.keyring).await.unwrap().expose(), secret);
    }
    std::fs::remove_file(&path).unwrap();
    assert!(resolve(1, &source, None, &gate.keyring).await.is_err());
}

#[tokio::test]
async fn another_keyring_is_noticed() {
    let gate = Gate::new().await;
    gate.store.check_keyring(&gate.keyring).await.unwrap();
    let other = Keyring::generate().unwrap();
    let refused = gate.store.check_keyring(&other).await;
    assert!(matches!(refused, Err(WriteError::Keyring(KeyringError::NotOfThisDatabase))), "{refused:?}");
}

#[tokio::test]
async fn a_node_token_opens_its_seal_key_until_it_is_revoked_or_expires() {
    let gate = Gate::new().await;
    gate.created("/v1/groups", json!({"name": "edge"})).await;
    let made = gate.created("/v1/node-tokens", json!({"name": "node", "group": "edge"})).await;
    let token = made["token"].as_str().unwrap();
    assert!(token.starts_with("sgn-"));
    let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
    let node = gate.store.node_by_token(&hash).await.unwrap().unwrap();
    assert_eq!((node.group.as_str(), node.token_name.as_str()), ("edge", "node"));
    assert_eq!(hex::encode(*node.seal_key(&gate.keyring).unwrap()), made["seal_key"].as_str().unwrap());
    assert_eq!(gate.refused(Method::DELETE, "/v1/groups/edge", Value::Null).await.0, "conflict");
    gate.deleted("/v1/node-tokens/node").await;
    assert!(gate.store.node_by_token(&hash).await.unwrap().is_none());
    let past = json!({"name": "old", "expires_at": "2020-01-01T00:00:00Z"});
    let token = gate.created("/v1/node-tokens", past).await;
    let hash: [u8; 32] = Sha256::digest(token["token"].as_str().unwrap().as_bytes()).into();
    assert!(gate.store.node_by_token(&hash).await.unwrap().is_none());
}

#[tokio::test]
async fn a_short_admin_token_is_not_seeded() {
    let gate = Gate::new().await;
    sqlx::query("delete from admin_token").execute(&gate.pool).await.unwrap();
    let seed = async |text: &str| {
        let seeds = Seeds { admin_token: Some(Secret::new(text.to_owned())), ..Seeds::default() };
        gate.store.seed(&seeds, &gate.keyring).await
    };
    let refused = seed(&"x".repeat(15)).await.unwrap_err().to_string();
    assert!(refused.starts_with("SLUICEGATE_ADMIN_TOKEN: must have 16 characters"), "{refused}");
    seed(&"x".repeat(16)).await.unwrap();
}

#[tokio::test]
async fn only_an_empty_database_is_seeded() {
    let gate = Gate::new().await;
    let seeds = |text: &str| Seeds {
        admin_token: Some(Secret::new(text.to_owned())),
        node_token: Some(Secret::new(text.to_owned())),
        seal_key: Some(Secret::new("ab".repeat(32))),
    };
    gate.store.seed(&seeds("first"), &gate.keyring).await.unwrap();
    gate.store.seed(&seeds("second"), &gate.keyring).await.unwrap();
    let node = |text: &str| {
        let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        let store = gate.store.clone();
        async move { store.node_by_token(&hash).await.unwrap() }
    };
    let first = node("first").await.unwrap();
    assert_eq!(hex::encode(*first.seal_key(&gate.keyring).unwrap()), "ab".repeat(32));
    assert!(node("second").await.is_none());
    // The admin token came with the fixture.
    let admins: i64 = sqlx::query_scalar("select count(*) from admin_token").fetch_one(&gate.pool).await.unwrap();
    assert_eq!(admins, 1);
    let bad = Seeds {
        node_token: Some(Secret::new("x".into())),
        seal_key: Some(Secret::new("short".into())),
        ..Seeds::default()
    };
    let empty = Gate::new().await;
    assert!(empty.store.seed(&bad, &Arc::clone(&empty.keyring)).await.is_err());
}
