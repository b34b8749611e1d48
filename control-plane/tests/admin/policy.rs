//! The policy follows the store, or the write is refused.

use http::Method;
use serde_json::{Value, json};

use crate::fixture::Gate;

#[tokio::test]
async fn the_snapshot_holds_what_was_declared() {
    let gate = Gate::stocked().await;
    let snapshot = gate.snapshot().await;
    assert_eq!(
        (snapshot.providers[0].authority.as_str(), snapshot.providers[0].path.as_str()),
        ("api.openai.com", "/v1")
    );
    assert_eq!(snapshot.backends[0].name, "openai/gpt-4o-2024-11-20");
    assert_eq!(snapshot.backends[0].price, snapshot.prices[0].id);
    assert_eq!(
        (snapshot.prices[0].tiers[0].input, snapshot.prices[0].tiers[0].output),
        (2_500_000_000, 10_000_000_000)
    );
    let list = &snapshot.models[0].lists[0];
    assert_eq!((list.weight, list.positions.len()), (1, 1));
    let credential: i32 = sqlx::query_scalar("select id from credential").fetch_one(&gate.pool).await.unwrap();
    assert_eq!(list.positions[0].credential, credential.cast_unsigned());
}

#[tokio::test]
async fn weights_become_rotations() {
    let gate = Gate::stocked().await;
    let target = |model: &str, weight: u32| json!({"provider": "openai", "model": model, "weight": weight});
    let targets = [target("a", 3), target("b", 2), target("c", 1)];
    gate.created("/v1/models", json!({"name": "mix", "targets": targets})).await;
    let snapshot = gate.snapshot().await;
    let name = |backend: u32| &snapshot.backends.iter().find(|b| b.id == backend).unwrap().model;
    let lists: Vec<(u32, String)> = snapshot.models[1]
        .lists
        .iter()
        .map(|list| (list.weight, list.positions.iter().map(|p| name(p.backend).as_str()).collect()))
        .collect();
    assert_eq!(lists, [(3, "abc".to_owned()), (2, "bac".to_owned()), (1, "cab".to_owned())]);
    assert_eq!(gate.get("/v1/models/mix").await["targets"], json!(targets));
}

#[tokio::test]
async fn only_what_changes_the_snapshot_gets_a_policy_revision() {
    let gate = Gate::stocked().await;
    let before = gate.counters().await;
    gate.created("/v1/keys", json!({"org": "acme", "name": "ci"})).await;
    gate.created("/v1/groups", json!({"name": "edge"})).await;
    // It touches a provider, but nothing an Envoy's policy holds.
    gate.patched("/v1/providers/openai", json!({"allow_private": true})).await;
    let after = gate.counters().await;
    assert_eq!((after.policy, after.revision), (before.policy, before.revision + 3));
    gate.patched("/v1/models/gpt-4o", json!({"name": "gpt-4o-renamed"})).await;
    let renamed = gate.counters().await;
    assert_eq!(renamed.policy, renamed.revision);
    let revisions: Vec<i64> =
        sqlx::query_scalar("select revision from policy order by revision").fetch_all(&gate.pool).await.unwrap();
    assert_eq!(revisions.last(), Some(&renamed.policy));
    assert!(!revisions.contains(&after.revision));
}

#[tokio::test]
async fn a_bad_model_is_refused_whole_and_names_its_field() {
    let gate = Gate::stocked().await;
    gate.created("/v1/providers", json!({"name": "two", "dialect": "openai", "base_url": "https://two.example/v1"}))
        .await;
    for name in ["two-a", "two-b"] {
        gate.created("/v1/credentials", json!({"name": name, "provider": "two", "source": "env:TWO"})).await;
    }
    let one = json!({"provider": "openai", "model": "x"});
    for (targets, field) in [
        (json!([]), "targets"),
        (json!([one, {"provider": "nobody", "model": "x"}]), "targets[1].provider"),
        (json!([one, one]), "targets[1]"),
        (json!([one, {"provider": "openai", "model": "x", "credential": "main"}]), "models[\"m\"].targets[1]"),
        (json!([{"provider": "openai", "model": "x", "credential": "none"}]), "targets[0].credential"),
        (json!([{"provider": "openai", "model": "x", "credential": "two-a"}]), "targets[0].credential"),
        (json!([{"provider": "two", "model": "x"}]), "models[\"m\"].targets[0].credential"),
        (
            json!([{"provider": "openai", "model": "x", "weight": 1}, {"provider": "openai", "model": "y"}]),
            "targets[1].weight",
        ),
        (json!([{"provider": "openai", "model": "x", "weight": 0}]), "targets[0].weight"),
        (json!([{"provider": "openai", "model": ""}]), "targets[0].model"),
        (json!([{"provider": "openai", "model": "x", "wieght": 1}]), "targets[0].wieght"),
    ] {
        let body = json!({"name": "m", "targets": targets});
        assert_eq!(gate.refused(Method::POST, "/v1/models", body).await.1, field, "{targets}");
    }
    assert_eq!(gate.refused(Method::POST, "/v1/models", json!({"name": "gpt-4o", "targets": [one]})).await.1, "name");
}

#[tokio::test]
async fn a_credential_that_makes_a_target_ambiguous_is_refused() {
    let gate = Gate::stocked().await;
    let second = json!({"name": "second", "provider": "openai", "source": "env:SECOND"});
    let refused = gate.refused(Method::POST, "/v1/credentials", second.clone()).await;
    assert_eq!(refused, ("invalid".to_owned(), "models[\"gpt-4o\"].targets[0].credential".to_owned()));
    let targets = json!([{"provider": "openai", "model": "gpt-4o-2024-11-20", "credential": "main"}]);
    gate.patched("/v1/models/gpt-4o", json!({"targets": targets})).await;
    gate.created("/v1/credentials", second).await;
}

#[tokio::test]
async fn a_bad_provider_or_price_names_its_field() {
    let gate = Gate::stocked().await;
    for (change, field) in [
        (json!({"base_url": "http://169.254.169.254/latest"}), "base_url"),
        (json!({"base_url": "https://user:pw@x.example"}), "base_url"),
        (json!({"base_url": "ftp://x.example"}), "base_url"),
        (json!({"dialect": "latin"}), "dialect"),
        (json!({"name": "a/b"}), "name"),
        (json!({"name": "openai"}), "name"),
        (json!({"ca": "no pem"}), "ca"),
        (json!({"url": "x"}), "url"),
    ] {
        let mut body = json!({"name": "p", "dialect": "openai", "base_url": "https://p.example"});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert_eq!(gate.refused(Method::POST, "/v1/providers", body).await.1, field, "{change}");
    }
    for (change, field) in [
        (json!({"input": "-1"}), "input"),
        (json!({"input": 2.5}), "input"),
        (json!({"input": "99999999999"}), "input"),
        (json!({"tiers": [{"above": 0, "input": "1", "output": "1"}]}), "tiers[0].above"),
        (json!({"provider": "nobody"}), "provider"),
        (json!({"model": "gpt-4o-2024-11-20"}), "model"),
        (json!({"cache_raed": "1"}), "cache_raed"),
    ] {
        let mut body = json!({"provider": "openai", "model": "m", "input": "1.00", "output": "2.00"});
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert_eq!(gate.refused(Method::POST, "/v1/prices", body).await.1, field, "{change}");
    }
}

#[tokio::test]
async fn what_is_in_use_stays() {
    let gate = Gate::stocked().await;
    let code = gate.refused(Method::DELETE, "/v1/providers/openai", Value::Null).await.0;
    assert_eq!(code, "conflict");
    let targets = json!([{"provider": "openai", "model": "gpt-4o-2024-11-20", "credential": "main"}]);
    gate.patched("/v1/models/gpt-4o", json!({"targets": targets})).await;
    assert_eq!(gate.refused(Method::DELETE, "/v1/credentials/main", Value::Null).await.0, "conflict");
    gate.deleted("/v1/models/gpt-4o").await;
    gate.deleted("/v1/providers/openai").await;
    let snapshot = gate.snapshot().await;
    assert!(snapshot.providers.is_empty() && snapshot.backends.is_empty() && snapshot.prices.is_empty());
}

#[tokio::test]
async fn a_key_whose_model_is_deleted_may_use_the_rest_and_never_more() {
    let gate = Gate::stocked().await;
    gate.created("/v1/keys", json!({"org": "acme", "name": "ci", "models": ["gpt-4o"]})).await;
    gate.deleted("/v1/models/gpt-4o").await;
    assert_eq!(gate.get("/v1/keys/ci").await["models"], json!([]));
    let again = json!({"name": "gpt-4o", "targets": [{"provider": "openai", "model": "x"}]});
    gate.created("/v1/models", again).await;
    assert_eq!(gate.get("/v1/keys/ci").await["models"], json!([]));
}

#[tokio::test]
async fn the_clusters_are_the_positions_with_their_endpoints() {
    let gate = Gate::stocked().await;
    let local =
        json!({"name": "local", "dialect": "openai", "base_url": "http://127.0.0.1:8080/api", "allow_private": true});
    gate.created("/v1/providers", local).await;
    let targets = json!([{"provider": "openai", "model": "x"}, {"provider": "local", "model": "x"}]);
    gate.created("/v1/models", json!({"name": "both", "targets": targets})).await;
    let sluicegate::store::Reachable { revision, clusters, .. } = gate.store.reachable().await.unwrap().unwrap();
    assert_eq!(revision, gate.counters().await.policy.cast_unsigned());
    assert_eq!(clusters.len(), 3);
    let local = clusters.iter().find(|c| c.endpoint.name == "local").unwrap();
    assert_eq!((local.credential, local.endpoint.endpoint.tls, local.endpoint.endpoint.port), (0, false, 8080));
}
