//! No credential of a client reaches a provider; no credential of a provider, an Envoy or an admin reaches a client, a log,
//! `config_dump`, a metric or the ledger. Checked by planting them and searching every sink.

use std::collections::BTreeMap;

use scripted_provider::{Answer, Rule};
use serde_json::json;
use sluicegate_tests::stack::{ADMIN_TOKEN, NODE_TOKEN, PROVIDER_SECRET, SEAL_KEY};
use sluicegate_tests::{Call, Http, Scene, Stack, alone, send};

/// Requests of every kind; all that clients got.
async fn traffic(scene: &Scene<'_>) -> String {
    let echo =
        Answer::error(401, &format!("Incorrect API key provided: {PROVIDER_SECRET}"), "invalid_request_error", "x");
    scene.rule(Rule::any().header("openai-beta", "echo").answer(echo));
    let mut calls = vec![
        scene.chat_call(json!({})),
        scene.chat_call(json!({"stream": true})),
        scene.chat_call(json!({"model": "no-such"})),
        scene.chat_call(json!({})).header("openai-beta", "echo"),
        scene
            .chat_call(json!({}))
            .header("x-api-key", "sk-leftover-canary-1")
            .header("cookie", "session=cookie-canary-1"),
        scene.call("/v1/chat/completions", "no JSON"),
        Call::get("/v1/models").bearer(&scene.key.secret),
        Call::get("/v1/models").bearer("sk-sg-unknown-canary-1-0000"),
    ];
    let mut in_query = scene.chat_call(json!({}));
    in_query.path += &format!("?key={}", scene.key.secret);
    calls.push(in_query);
    let mut seen = String::new();
    for call in calls {
        for http in [Http::H1, Http::H2] {
            let reply = scene.send(http, call.clone()).await.unwrap();
            seen += &format!("{} {:?}\n", reply.status, reply.headers);
            seen += &reply.text().await.unwrap();
        }
    }
    seen
}

/// Every table, row by row, as text.
async fn database(stack: &Stack) -> String {
    let sql = "select table_name::text from information_schema.tables where table_schema = 'public'";
    let tables: Vec<String> = sqlx::query_scalar(sql).fetch_all(stack.ledger.pool()).await.unwrap();
    let mut all = String::new();
    for table in tables {
        let sql = sqlx::AssertSqlSafe(format!("select coalesce(string_agg(t::text, E'\\n'), '') from \"{table}\" t"));
        let rows: String = sqlx::query_scalar(sql).fetch_one(stack.ledger.pool()).await.unwrap();
        all += &rows;
    }
    all
}

#[test]
fn nowhere_to_be_found() {
    alone(async {
        let stack = Stack::start().await;
        let scene = stack.scene("p28").await;
        let client = traffic(&scene).await;
        sluicegate_tests::eventually("some usage is in the ledger", std::time::Duration::from_secs(10), || async {
            anyhow::ensure!(!stack.ledger.of_key(scene.key.id).await?.is_empty());
            Ok(())
        })
        .await;

        let metrics = send(Http::H1, stack.control.http(), Call::get("/metrics")).await.unwrap().text().await.unwrap();
        let mut rest = String::new();
        for path in
            ["/v1/providers", "/v1/credentials", "/v1/keys", "/v1/envoys", "/v1/usage", "/v1/audit", "/v1/export"]
        {
            let (_, body) = stack.admin.call(reqwest::Method::GET, path, None).await.unwrap();
            rest += &body.to_string();
        }
        let mut sinks: BTreeMap<&str, String> = BTreeMap::new();
        sinks.insert("clients", client.clone());
        sinks.insert("Envoy's log", stack.envoy.process().log());
        sinks.insert("access log", std::fs::read_to_string(stack.control.access_log()).unwrap());
        sinks.insert("control plane's log", stack.control.process().log());
        sinks.insert("config_dump", stack.envoy.page("/config_dump?include_eds").await.unwrap());
        sinks.insert("Envoy's metrics", stack.envoy.page("/stats/prometheus").await.unwrap());
        sinks.insert("control plane's metrics", metrics);
        sinks.insert("Admin API", rest);
        sinks.insert("database", database(&stack).await);
        for (sink, text) in &sinks {
            assert!(!text.is_empty(), "{sink} is empty: nothing was searched");
            for secret in [PROVIDER_SECRET, NODE_TOKEN, SEAL_KEY, ADMIN_TOKEN, &scene.key.secret, "-canary-1"] {
                assert!(!text.contains(secret), "{sink} has {secret}");
            }
        }
        let requests = stack.provider.requests();
        assert!(requests.len() >= 8);
        for request in requests {
            let all = format!("{} {:?} {}", request.target, request.headers, String::from_utf8_lossy(&request.body));
            assert!(!all.contains("sk-sg-") && !all.contains("-canary-1"), "{all}");
        }
    });
}
