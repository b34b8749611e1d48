//! The shape of the API: who may, what is said to whom may not, pages, the document.

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::fixture::{ADMIN_TOKEN, Gate};

#[tokio::test]
async fn every_route_wants_a_token_and_the_document_does_not() {
    let gate = Gate::stocked().await;
    let (status, document) = gate.call_as(None, Method::GET, "/openapi.json", None).await;
    assert_eq!(status, StatusCode::OK);
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 30, "{}", paths.len());
    for (path, item) in paths {
        for method in item.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let path = path.replace("{name}", "x").replace("{operation}", "x");
            for token in [None, Some(""), Some("wrong"), Some(&ADMIN_TOKEN[1..])] {
                let (status, answer) = gate.call_as(token, method.clone(), &path, Some(json!({}))).await;
                assert_eq!(status, StatusCode::UNAUTHORIZED, "{method} {path}");
                assert_eq!(answer["error"]["code"], "unauthorized");
            }
        }
    }
}

#[tokio::test]
async fn the_document_names_every_request_and_answer() {
    let document = serde_json::to_value(sluicegate::admin::openapi()).unwrap();
    let schemas = &document["components"]["schemas"];
    for name in
        ["Provider", "Credential", "Model", "Price", "Org", "Team", "User", "Key", "Group", "Document", "Problem"]
    {
        assert!(schemas.get(name).is_some(), "{name}");
    }
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    for reference in references {
        let name = reference.rsplit('/').next().unwrap();
        assert!(schemas.get(name).is_some(), "{reference} is nowhere");
    }
    let mut ids: Vec<&str> = document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values())
        .map(|operation| operation["operationId"].as_str().unwrap())
        .collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "operation ids are unique");
}

fn collect_references(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(reference) if name == "$ref" => into.push(reference.clone()),
                    value => collect_references(value, into),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_references(item, into)),
        _ => {}
    }
}

#[tokio::test]
async fn a_list_comes_in_pages() {
    let gate = Gate::stocked().await;
    for i in 0..5 {
        gate.created("/v1/keys", json!({"org": "acme", "name": format!("k{i}")})).await;
    }
    let mut names = Vec::new();
    let mut after = "0".to_owned();
    loop {
        let page = gate.get(&format!("/v1/keys?limit=2&after={after}")).await;
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2);
        names.extend(items.iter().map(|key| key["name"].as_str().unwrap().to_owned()));
        match page["next"].as_str() {
            Some(next) => after = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(names, ["k0", "k1", "k2", "k3", "k4"]);
    let (status, _) = gate.call(Method::GET, "/v1/keys?limt=2", None).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn the_audit_log_says_who_did_what() {
    let gate = Gate::stocked().await;
    gate.patched("/v1/prices/openai%2Fgpt-4o-2024-11-20", json!({"input": "3.00"})).await;
    gate.post("/v1/orgs/acme/block", json!({})).await;
    let entries = gate.get("/v1/audit?limit=2").await;
    let (block, update) = (&entries["items"][0], &entries["items"][1]);
    assert_eq!((&block["action"], &block["kind"], &block["object"]), (&json!("block"), &json!("org"), &json!("acme")));
    assert_eq!(
        (&update["actor"], &update["detail"]),
        (&json!("seed"), &json!({"input": {"from": "2.50", "to": "3.00"}}))
    );
    assert_eq!(block["revision"], json!(gate.counters().await.revision));
    let older = gate.get(&format!("/v1/audit?after={}", entries["next"].as_str().unwrap())).await;
    assert!(older["items"].as_array().unwrap().iter().all(|e| e["id"].as_i64() < update["id"].as_i64()));
}

#[tokio::test]
async fn what_is_not_there_and_what_is_not_json_is_said_as_json() {
    let gate = Gate::stocked().await;
    for (method, path, status) in [
        (Method::GET, "/v1/nothing", StatusCode::NOT_FOUND),
        (Method::PUT, "/v1/keys", StatusCode::METHOD_NOT_ALLOWED),
        (Method::GET, "/v1/keys/none", StatusCode::NOT_FOUND),
        (Method::GET, "/v1/keys/99999", StatusCode::NOT_FOUND),
        (Method::DELETE, "/v1/node-tokens/none", StatusCode::NOT_FOUND),
        (Method::GET, "/v1/usage/abc", StatusCode::UNPROCESSABLE_ENTITY),
        (Method::GET, "/v1/usage/00000000-0000-0000-0000-000000000000", StatusCode::NOT_FOUND),
        (Method::POST, "/v1/keys", StatusCode::UNPROCESSABLE_ENTITY),
    ] {
        let (got, answer) = gate.call(method.clone(), path, None).await;
        assert_eq!(got, status, "{method} {path}");
        assert!(answer["error"]["message"].is_string(), "{answer}");
    }
}

#[tokio::test]
async fn a_nul_is_refused_wherever_it_stands() {
    let gate = Gate::stocked().await;
    for path in ["/v1/orgs/%00", "/v1/keys/a%00b", "/v1/admin-tokens/%00", "/v1/usage/%00", "/v1/keys?limit=%00"] {
        for method in [Method::GET, Method::DELETE] {
            let (status, answer) = gate.call(method.clone(), path, None).await;
            assert!(status.is_client_error() && answer["error"]["message"].is_string(), "{method} {path}: {answer}");
        }
    }
    let target = json!({"provider": "openai", "model": "a\0"});
    for (path, body, field) in [
        ("/v1/orgs", json!({"name": "a\0"}), "name"),
        ("/v1/groups", json!({"name": "g", "description": "\0"}), "description"),
        ("/v1/keys", json!({"org": "acme", "name": "k", "models": ["gpt-4o", "\0"]}), "models[1]"),
        ("/v1/models", json!({"name": "m", "targets": [target]}), "targets[0].model"),
        ("/v1/orgs", json!({"name": "a", "b\0": 1}), ""),
        ("/v1/apply", json!({"version": "v1", "users": [{"org": "\0", "name": "u"}]}), "users[0].org"),
    ] {
        assert_eq!(gate.refused(Method::POST, path, body).await, ("invalid".to_owned(), field.to_owned()), "{path}");
    }
    // The text of the escape is no escape.
    gate.created("/v1/groups", json!({"name": "g", "description": "\\u0000"})).await;
}

#[tokio::test]
async fn a_limit_is_from_1_to_1000() {
    let gate = Gate::stocked().await;
    for list in ["keys", "node-tokens", "admin-tokens", "usage", "usage?by=day", "envoys", "audit"] {
        let with = |limit: &str| format!("/v1/{list}{}limit={limit}", if list.contains('?') { '&' } else { '?' });
        for limit in ["0", "1001", "4294967295", "4294967296", "-1", "x", ""] {
            let (status, answer) = gate.call(Method::GET, &with(limit), None).await;
            assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{list} {limit}: {answer}");
            assert_eq!(answer["error"]["field"], "limit", "{list} {limit}: {answer}");
        }
        gate.get(&with("1")).await;
        gate.get(&with("1000")).await;
    }
}

#[tokio::test]
async fn what_is_too_long_is_refused_with_its_field() {
    let gate = Gate::stocked().await;
    let long = "x".repeat(100_000);
    let ca = format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----", "QUFB".repeat(100_000));
    let provider = |url: &str| json!({"name": "p", "dialect": "openai", "base_url": url});
    let mut with_ca = provider("https://a/v1");
    with_ca["ca"] = json!(ca);
    for (path, body, field) in [
        ("/v1/orgs", json!({"name": long}), "name"),
        ("/v1/groups", json!({"name": "g", "description": long}), "description"),
        ("/v1/credentials", json!({"name": "c", "provider": "openai", "secret": long}), "secret"),
        ("/v1/credentials", json!({"name": "c", "provider": "openai", "source": format!("file:/{long}")}), "source"),
        ("/v1/providers", provider(&format!("https://a/{long}")), "base_url"),
        ("/v1/providers", provider("https://a:0/v1"), "base_url"),
        ("/v1/providers", provider("https://a/v1/../admin"), "base_url"),
        ("/v1/providers", with_ca, "ca"),
        ("/v1/keys", json!({"org": "acme", "name": "k", "expires_at": "+262142-01-01"}), "expires_at"),
        ("/v1/keys", json!({"org": long, "name": "k"}), "org"),
    ] {
        assert_eq!(gate.refused(Method::POST, path, body).await, ("invalid".to_owned(), field.to_owned()), "{path}");
    }
    let (status, _) = gate.call(Method::GET, &format!("/v1/orgs/{}", &long[..60_000]), None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_told_so() {
    let gate = Gate::stocked().await;
    let url = gate.served().await;
    sluicegate::tls::install_provider();
    for path in ["/v1/apply", "/v1/reconcile"] {
        // More than the sockets between hold, in the middle of which a closed one would be a reset.
        let sent =
            reqwest::Client::new().post(format!("{url}{path}")).bearer_auth(ADMIN_TOKEN).body(vec![b' '; 40 << 20]);
        let answer = sent.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["error"]["code"], "too_large", "{answer}");
    }
}

#[tokio::test]
async fn usage_is_read_with_names_and_summed() {
    let gate = Gate::stocked().await;
    let key = gate.created("/v1/keys", json!({"org": "acme", "name": "ci"})).await;
    let operation = "018f0000-0000-7000-8000-000000000001";
    sqlx::query(
        "insert into usage (day, boot, vm, seq, operation, attempt, last, admitted_at, org_id, key_id, route,
             requested_model, model_id, backend_id, policy_revision, stream, input, cache_read, cache_write_5m,
             cache_write_1h, output, reasoning, audio_in, audio_out, images, source, cost_nano, status, ended, total_us, gateway_us)
         select '2026-01-02', 1, 1, i, $1::uuid, i, i = 2, '2026-01-02T03:04:05Z', o.id, k.id, 'chat.completions',
             'gpt-4o', m.id, b.id, 1, true, 10, 0, 0, 0, 5, 0, 0, 0, 0, 'reported', 75000, 200, 'complete', 1000, 10
         from generate_series(1, 2) i, org o, api_key k, model m, backend b",
    )
    .bind(operation)
    .execute(&gate.pool)
    .await
    .unwrap();
    sqlx::query(
        "insert into usage_hourly (hour, org_id, team_id, user_id, key_id, model_id, backend_id, requests, attempts, input, output, cost_nano)
         select '2026-01-02T03:00:00Z', o.id, 0, 0, k.id, m.id, b.id, 1, 2, 20, 10, 150000
         from org o, api_key k, model m, backend b",
    )
    .execute(&gate.pool)
    .await
    .unwrap();
    let rows = gate.get(&format!("/v1/usage?key={}", key["id"])).await;
    let row = &rows["items"][0];
    assert_eq!((&row["org"], &row["key"], &row["model"]), (&json!("acme"), &json!("ci"), &json!("gpt-4o")));
    assert_eq!(row["backend"], "openai/gpt-4o-2024-11-20");
    assert_eq!(gate.get("/v1/usage?to=2026-01-02T03:04:05Z").await["items"], json!([]));
    let attempts = gate.get(&format!("/v1/usage/{operation}")).await;
    let numbers: Vec<_> = attempts["attempts"].as_array().unwrap().iter().map(|a| a["attempt"].as_i64()).collect();
    assert_eq!(numbers, [Some(1), Some(2)]);
    for (by, what) in [("hour", "2026-01-02T03:00:00Z"), ("day", "2026-01-02"), ("key", "acme/ci"), ("model", "gpt-4o")]
    {
        let sums = gate.get(&format!("/v1/usage?by={by}")).await;
        assert_eq!((&sums["items"][0]["what"], &sums["items"][0]["cost_nano"]), (&json!(what), &json!(150_000)));
    }
}

/// A sign makes no number: a noun may be named `+19`, and whoever deletes it means that one.
#[tokio::test]
async fn only_digits_are_an_id() {
    let gate = Gate::stocked().await;
    let acme = gate.get("/v1/orgs/acme").await["id"].as_i64().unwrap();
    let user = gate.created("/v1/users", json!({"org": "acme", "name": "u"})).await["id"].as_i64().unwrap();
    for (kind, id) in [("orgs", acme), ("groups", 1), ("users", user)] {
        let name = format!("+{id}");
        let body = if kind == "users" { json!({"org": "acme", "name": name}) } else { json!({"name": name}) };
        let made = gate.created(&format!("/v1/{kind}"), body).await;
        let path = format!("/v1/{kind}/%2B{id}");
        assert_eq!(gate.get(&path).await["id"], made["id"], "{kind}");
        let (status, _) = gate.call(Method::DELETE, &path, None).await;
        assert_eq!(status, StatusCode::NO_CONTENT);
        assert_eq!(gate.get(&format!("/v1/{kind}/{id}")).await["id"], id, "{kind}");
        assert_eq!(gate.call(Method::DELETE, &path, None).await.0, StatusCode::NOT_FOUND, "{kind}");
    }
    gate.created("/v1/orgs", json!({"name": "-1"})).await;
    assert_eq!(gate.get("/v1/orgs/-1").await["name"], "-1");
    assert_eq!(gate.refused(Method::POST, "/v1/orgs", json!({"name": "7"})).await.1, "name");
}

#[tokio::test]
async fn only_digits_are_the_id_of_a_token_or_of_a_query() {
    let gate = Gate::stocked().await;
    for kind in ["admin-tokens", "node-tokens"] {
        let victim = gate.created(&format!("/v1/{kind}"), json!({"name": "victim"})).await["id"].as_i64().unwrap();
        let path = format!("/v1/{kind}/%2B{victim}");
        assert_eq!(gate.call(Method::DELETE, &path, None).await.0, StatusCode::NOT_FOUND, "{kind}");
        gate.created(&format!("/v1/{kind}"), json!({"name": format!("+{victim}")})).await;
        assert_eq!(gate.call(Method::DELETE, &path, None).await.0, StatusCode::NO_CONTENT, "{kind}");
        let tokens = gate.get(&format!("/v1/{kind}")).await;
        let victim = tokens["items"].as_array().unwrap().iter().find(|token| token["name"] == "victim").unwrap();
        assert!(victim["revoked_at"].is_null(), "{victim}");
    }
    for (path, field) in [
        ("/v1/usage?org=%2B1", "org"),
        ("/v1/usage?team=-1", "team"),
        ("/v1/usage?user=%201", "user"),
        ("/v1/usage?key=+1", "key"),
        ("/v1/usage?model=%2B1&by=day", "model"),
        ("/v1/usage?limit=%2B1", "limit"),
        ("/v1/keys?after=%2B1", "after"),
        ("/v1/audit?after=-1", "after"),
        ("/v1/envoys?limit=%2B1", "limit"),
    ] {
        let (status, answer) = gate.call(Method::GET, path, None).await;
        assert_eq!(
            (status, answer["error"]["field"].as_str()),
            (StatusCode::UNPROCESSABLE_ENTITY, Some(field)),
            "{path}"
        );
    }
}

/// Whatever refuses a request, it does so in the one shape.
#[tokio::test]
async fn a_path_that_is_no_text_is_refused_as_json() {
    let gate = Gate::stocked().await;
    let document = serde_json::to_value(sluicegate::admin::openapi()).unwrap();
    let mut tried = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        if !path.contains('{') {
            continue;
        }
        for method in item.as_object().unwrap().keys() {
            let method: Method = method.to_uppercase().parse().unwrap();
            let path = path.replace("{name}", "%ff").replace("{operation}", "%ff");
            let (status, answer) = gate.call(method.clone(), &path, Some(json!({}))).await;
            assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{method} {path}");
            assert_eq!(answer["error"]["code"], "invalid", "{method} {path}: {answer}");
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
}

#[tokio::test]
async fn two_processes_under_one_node_id_are_named() {
    let gate = Gate::stocked().await;
    // A pair that lives side by side, one that was started again, and a pair that was long ago.
    sqlx::query(
        "insert into envoy (boot, node, group_id, first_seen, last_seen)
         select boot, node, 1, now() - first * interval '1 second', now() - last * interval '1 second' from (values
           (1, 'twin', 60, 1), (2, 'twin', 30, 4), (3, 'again', 60, 12), (4, 'again', 11, 1), (5, 'old', 90, 30), (6, 'old', 80, 20)
         ) as x (boot, node, first, last)",
    )
    .execute(&gate.pool)
    .await
    .unwrap();
    let envoys = gate.get("/v1/envoys").await;
    let judged = |boot: &str| {
        let envoy = envoys["items"].as_array().unwrap().iter().find(|envoy| envoy["boot"] == boot).unwrap();
        (envoy["live"].as_bool().unwrap(), envoy["clash"].as_bool().unwrap())
    };
    assert_eq!(
        ["1", "2", "3", "4", "5", "6"].map(judged),
        [(true, true), (true, true), (true, false), (true, false), (false, false), (false, false)]
    );
}
