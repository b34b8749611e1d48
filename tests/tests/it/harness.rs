//! The harness itself, on the real parts: a harness that misjudges makes every other test worthless.

use std::time::Duration;

use scripted_provider::{Answer, Chat, Hold, Provider, Script};
use sluicegate_tests::client::{Call, Http, Outgoing, send};
use sluicegate_tests::envoy::{Envoy, EnvoyConfig};
use sluicegate_tests::fault::{FaultProxy, Wire};
use sluicegate_tests::load::Load;
use sluicegate_tests::sse::{Decoder, text_of};
use sluicegate_tests::{eventually, side_by_side, tools};
use sqlx::{Connection as _, PgConnection};
use test_postgres::Postgres;

const STREAM: &str = r#"{"model":"m","stream":true,"messages":[]}"#;

#[test]
fn databases_are_migrated_and_apart() {
    side_by_side(async {
        let (one, other) = (test_postgres::database().await.pool().await, test_postgres::database().await.pool().await);
        sqlx::query("insert into org (name) values ('here')").execute(&one).await.unwrap();
        let count = |pool| async move {
            let n: i64 = sqlx::query_scalar("select count(*) from org").fetch_one(&pool).await.unwrap();
            n
        };
        assert_eq!((count(one).await, count(other).await), (1, 0));
    });
}

#[test]
fn a_killed_postgres_keeps_what_was_committed() {
    side_by_side(async {
        let mut server = Postgres::start().await;
        let database = server.database("postgres");
        let pool = database.pool().await;
        sqlx::query("create table t as select 1 as n").execute(&pool).await.unwrap();
        server.kill_9().await;
        assert!(PgConnection::connect(&database.url).await.is_err());
        server.restart().await;
        let n: i32 = sqlx::query_scalar("select n from t").fetch_one(&database.pool().await).await.unwrap();
        assert_eq!(n, 1);
    });
}

/// An Envoy without anything of ours in front of `provider`.
async fn bare_envoy(provider: &Provider) -> Envoy {
    let (listen, admin) = (tools::free_port(), tools::free_port());
    let bootstrap = format!(
        r#"
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {listen}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bare
          http_protocol_options: {{enable_trailers: true}}
          route_config: {{virtual_hosts: [{{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: provider, timeout: 0s}}}}]}}]}}
          http_filters: [{{name: envoy.filters.http.router, typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]
  clusters:
  - name: provider
    load_assignment: {{cluster_name: provider, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {provider}}}}}}}}}]}}]}}
"#,
        provider = provider.addr().port()
    );
    let local = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    Envoy::start(EnvoyConfig {
        program: tools::envoy(),
        bootstrap,
        listen: local(listen),
        admin: local(admin),
        env: Vec::new(),
        folder: tools::folder("bare-envoy"),
        concurrency: 1,
    })
    .await
}

#[test]
fn requests_of_every_shape_pass_a_bare_envoy() {
    side_by_side(async {
        let provider = Provider::start(Script::new()).await.unwrap();
        let envoy = bare_envoy(&provider).await;
        for http in [Http::H1, Http::H2] {
            let trailers = Outgoing::Pieces {
                pieces: STREAM.as_bytes().chunks(1).map(bytes::Bytes::from_static).collect(),
                trailers: vec![("x-end".to_owned(), "1".to_owned())],
            };
            for body in [Outgoing::Whole(STREAM.into()), trailers] {
                provider.forget_requests();
                let call = Call::post("/v1/chat/completions?a=b", "").body(body).header("x-case", "1");
                let mut events = send(http, envoy.addr(), call).await.unwrap().events();
                let all = events.rest().await.unwrap();
                assert_eq!(text_of(&all), "Hello from the scripted provider.");
                assert!(all.last().unwrap().is_done());
                let request = &provider.requests()[0];
                assert_eq!(
                    (request.target.as_str(), &request.body[..]),
                    ("/v1/chat/completions?a=b", STREAM.as_bytes())
                );
            }
        }
        assert!(envoy.stat("downstream_rq_2xx").await.unwrap() >= 4);
        assert!(envoy.process().resident_bytes() > 10 << 20);
    });
}

#[test]
fn events_are_timed_when_they_arrive() {
    side_by_side(async {
        let hold = Hold::new();
        let provider =
            Provider::start(Script::always(Answer::from(Chat::text(&["a", "b"])).hold_events(&hold))).await.unwrap();
        for http in [Http::H1, Http::H2] {
            let mut events =
                send(http, provider.addr(), Call::post("/v1/chat/completions", STREAM)).await.unwrap().events();
            let first = events.next().await.unwrap().unwrap();
            hold.release(1);
            let second = events.next().await.unwrap().unwrap();
            assert!(second.at > first.at);
            events.leave();
        }
        for request in provider.requests() {
            assert_eq!(request.fate().await, scripted_provider::Fate::Abandoned);
        }
    });
}

#[test]
fn the_decoder_takes_every_line_end_and_split() {
    let now = std::time::Instant::now();
    let expected = ["one", "two\nlines", "[DONE]"];
    for end in ["\n", "\r\n", "\r"] {
        let text = [": hi", "data: one", "", "event: x", "data:two", "data: lines", "", "data: [DONE]"].join(end);
        for size in 1..text.len() {
            let mut decoder = Decoder::default();
            text.as_bytes().chunks(size).for_each(|c| decoder.push(c, now));
            let mut got: Vec<String> = std::iter::from_fn(|| decoder.take()).map(|e| e.data).collect();
            got.extend(decoder.finish().map(|e| e.data));
            assert_eq!(got, expected, "{end:?} in pieces of {size}");
        }
    }
}

#[test]
fn load_counts_every_outcome() {
    side_by_side(async {
        let script = Script::new()
            .rule(scripted_provider::Rule::any().times(20).answer(Answer::default()))
            .otherwise(Answer::error(503, "away", "server_error", "away"));
        let provider = Provider::start(script).await.unwrap();
        let load = Load::start(format!("{}/chat/completions", provider.base_url()), "k".into(), STREAM.into(), 200);
        eventually("all twenty succeed and some are refused", Duration::from_secs(20), || async {
            let outcomes = load.outcomes();
            anyhow::ensure!(outcomes.count("200") == 20 && outcomes.count("503 away") > 0, "{:?}", outcomes.counts);
            Ok(())
        })
        .await;
        drop(provider);
        let outcomes = load.stop().await;
        assert_eq!(outcomes.sent, outcomes.counts.values().sum::<u64>());
        assert_eq!((outcomes.count("200"), outcomes.latencies.len()), (20, 20));
        assert!(!outcomes.failures().contains_key("200"));
    });
}

#[test]
fn the_fault_proxy_stalls_resets_and_recovers() {
    side_by_side(async {
        let provider = Provider::start(Script::new()).await.unwrap();
        let proxy = FaultProxy::start(provider.addr()).await;
        let ask = || send(Http::H1, proxy.addr(), Call::post("/v1/chat/completions", STREAM));
        assert_eq!(ask().await.unwrap().status, 200);
        proxy.set(Wire::Stalled);
        assert!(tokio::time::timeout(Duration::from_millis(100), ask()).await.is_err());
        proxy.set(Wire::Reset);
        assert!(ask().await.is_err());
        proxy.set(Wire::Good);
        let reply = ask().await.unwrap();
        proxy.reset_once();
        assert_eq!((reply.status, ask().await.unwrap().status), (200, 200));
    });
}
