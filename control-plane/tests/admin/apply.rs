//! The declarative file against the store.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::fixture::{Gate, PROVIDER_SECRET};

fn file() -> Value {
    json!({
        "version": "v1",
        "providers": [{"name": "openai", "dialect": "openai", "base_url": "https://api.openai.com/v1"}],
        "credentials": [{"name": "main", "provider": "openai", "source": "env:OPENAI_API_KEY"}],
        "models": [
            {"name": "gpt-4o", "targets": [{"provider": "openai", "model": "gpt-4o"}]},
            {"name": "mini", "targets": [{"provider": "openai", "model": "gpt-4o-mini"}]}
        ],
        "prices": [{"provider": "openai", "model": "gpt-4o", "input": "2.50", "output": "10.00"}],
        "orgs": [{"name": "acme"}],
        "teams": [{"org": "acme", "name": "red"}],
        "users": [{"org": "acme", "team": "red", "name": "ada@acme.com"}],
        "keys": [{"org": "acme", "name": "ada", "user": "ada@acme.com", "team": "red", "models": ["gpt-4o"]}]
    })
}

fn summary(outcome: &Value) -> Vec<String> {
    let text = |change: &Value, field: &str| change[field].as_str().unwrap().to_owned();
    let changes = outcome["changes"].as_array().unwrap();
    changes.iter().map(|c| format!("{} {} {}", text(c, "action"), text(c, "kind"), text(c, "name"))).collect()
}

#[tokio::test]
async fn a_file_is_applied_in_one_commit_and_again_changes_nothing() {
    let gate = Gate::new().await;
    let before = gate.counters().await;
    let outcome = gate.post("/v1/apply", file()).await;
    assert_eq!(outcome["changes"].as_array().unwrap().len(), 9);
    assert_eq!(outcome["revision"], json!(before.revision + 1));
    let key = &outcome["keys"][0];
    assert_eq!(key["key"], "acme/ada");
    assert!(key["secret"].as_str().unwrap().starts_with("sk-sg-"));
    assert_eq!(gate.get("/v1/keys/ada").await["team"], "red");
    let again = gate.post("/v1/apply", file()).await;
    assert_eq!((&again["changes"], &again["revision"], &again["keys"]), (&json!([]), &outcome["revision"], &json!([])));
}

#[tokio::test]
async fn a_dry_run_says_what_would_change_and_changes_nothing() {
    let gate = Gate::new().await;
    gate.post("/v1/apply", file()).await;
    let before = gate.counters().await;
    let mut changed = file();
    changed["prices"][0]["input"] = json!("3.00");
    changed["orgs"].as_array_mut().unwrap().push(json!({"name": "new"}));
    changed["keys"].as_array_mut().unwrap().push(json!({"org": "new", "name": "k"}));
    let outcome = gate.post("/v1/apply?dry_run=true", changed).await;
    assert_eq!(summary(&outcome), ["update price openai/gpt-4o", "create org new", "create key new/k"]);
    assert_eq!(outcome["changes"][0]["fields"], json!({"input": {"from": "2.50", "to": "3.00"}}));
    assert_eq!((&outcome["revision"], &outcome["keys"]), (&Value::Null, &json!([])));
    assert_eq!(gate.counters().await, before);
}

#[tokio::test]
async fn without_prune_all_stays_and_with_it_only_absent_sections_stay() {
    let gate = Gate::new().await;
    gate.post("/v1/apply", file()).await;
    let mut less = file();
    less["models"].as_array_mut().unwrap().pop();
    less["keys"] = json!([]);
    less.as_object_mut().unwrap().remove("prices");
    assert_eq!(gate.post("/v1/apply", less.clone()).await["changes"], json!([]));
    let outcome = gate.post("/v1/apply?prune=true", less).await;
    assert_eq!(summary(&outcome), ["delete key acme/ada", "delete model mini"]);
    assert_eq!(gate.get("/v1/prices").await["items"].as_array().unwrap().len(), 1);
    let empty = json!({"version": "v1", "groups": [], "providers": [], "credentials": [], "models": [], "prices": [],
        "orgs": [], "teams": [], "users": [], "keys": []});
    gate.post("/v1/apply?prune=true", empty).await;
    assert!(gate.snapshot().await.models.is_empty());
    // The default group is nobody's to delete.
    assert_eq!(gate.get("/v1/groups").await["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_bad_file_is_refused_whole_and_names_the_field() {
    let gate = Gate::new().await;
    gate.post("/v1/apply", file()).await;
    let cases: [(&str, Value, &str); 9] = [
        ("/models/1/targets/0/provider", json!("nobody"), "models[1].targets[0].provider"),
        ("/models/1/targets", json!([]), "models[1].targets"),
        ("/models/1/name", json!("gpt-4o"), "models[1].name"),
        ("/prices/0/input", json!("-1"), "prices[0].input"),
        ("/users/0/team", json!("green"), "users[0].team"),
        ("/keys/0/models/0", json!("gpt-6"), "keys[0].models[0]"),
        ("/providers/0/base_url", json!("http://localhost"), "providers[0].base_url"),
        ("/credentials/0/source", json!("sk-inline"), "credentials[0].source"),
        ("/orgs/0", json!({"name": "acme", "color": "red"}), "orgs[0].color"),
    ];
    for (pointer, value, field) in cases {
        let mut bad = file();
        // The bad part comes after good ones that would be written first.
        bad["providers"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "new", "dialect": "openai", "base_url": "https://n.example"}));
        *bad.pointer_mut(pointer).unwrap() = value;
        assert_eq!(gate.refused(Method::POST, "/v1/apply", bad).await.1, field, "{pointer}");
    }
    assert_eq!(gate.call(Method::GET, "/v1/providers/new", None).await.0, StatusCode::NOT_FOUND);
    let mut ambiguous = file();
    ambiguous["credentials"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "b", "provider": "openai", "source": "env:B"}));
    let field = gate.refused(Method::POST, "/v1/apply?dry_run=true", ambiguous).await.1;
    assert_eq!(field, "models[\"gpt-4o\"].targets[0].credential");
}

#[tokio::test]
async fn an_export_applied_again_changes_nothing_and_holds_no_secret() {
    let gate = Gate::stocked().await;
    let key = gate.created("/v1/keys", json!({"org": "acme", "name": "ci", "networks": ["10.0.0.0/8"]})).await;
    let export = gate.get("/v1/export").await;
    assert_eq!(export["credentials"][0]["source"], "stored");
    let text = export.to_string();
    assert!(!text.contains(PROVIDER_SECRET) && !text.contains(key["secret"].as_str().unwrap()));
    assert_eq!(gate.post("/v1/apply?prune=true", export.clone()).await["changes"], json!([]));
    // Elsewhere, the stored secret is missing, and that is said.
    let other = Gate::new().await;
    assert_eq!(other.refused(Method::POST, "/v1/apply", export).await.1, "credentials[0].secret");
}

#[tokio::test]
async fn a_key_by_hash_in_a_file_is_replaced_when_the_hash_changes() {
    let gate = Gate::new().await;
    let with_hash = |digit: &str| {
        json!({"version": "v1", "orgs": [{"name": "acme"}],
               "keys": [{"org": "acme", "name": "ci", "hash": digit.repeat(64)}]})
    };
    assert_eq!(gate.post("/v1/apply", with_hash("a")).await["keys"], json!([]));
    assert_eq!(gate.post("/v1/apply", with_hash("a")).await["changes"], json!([]));
    let outcome = gate.post("/v1/apply", with_hash("b")).await;
    assert_eq!(outcome["changes"][0]["fields"], json!({"secret": "replaced"}));
    let revision = gate.counters().await.revision;
    let mut both = [i32::from_be_bytes([0xaa; 4]), i32::from_be_bytes([0xbb; 4])];
    both.sort_unstable();
    assert_eq!(gate.key_changes(revision).await, both);
}
