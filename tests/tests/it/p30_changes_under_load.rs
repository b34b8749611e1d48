//! Changes of everything, all the time, under load: no request fails, no stream is cut, and memory does not grow.
//!
//! Twenty seconds of it; `SLUICEGATE_SOAK_SECONDS=300` makes it five minutes.

use std::time::Duration;

use scripted_provider::{Answer, Chat};
use serde_json::{Value, json};
use sluicegate_tests::issuer::{AUDIENCE, TokenIssuer};
use sluicegate_tests::load::Load;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::sse::text_of;
use sluicegate_tests::stack::CHAT;
use sluicegate_tests::{Call, Http, Scene, Stack, alone, eventually};
use tokio::time::{Instant, MissedTickBehavior, interval};

const PER_SECOND: u32 = 200;
const STREAMS: u32 = 50;
const MIB: u64 = 1 << 20;

fn duration() -> Duration {
    let seconds = std::env::var("SLUICEGATE_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// One every `period`, until `end`; returns how many there were.
async fn again_and_again(period: Duration, end: Instant, mut change: impl AsyncFnMut(u64)) -> u64 {
    let mut due = interval(period);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut n = 0;
    while Instant::now() < end {
        due.tick().await;
        change(n).await;
        n += 1;
    }
    n
}

/// A model whose cluster is there already: a new policy and nothing else.
async fn policy(scene: &Scene<'_>, n: u64) {
    let admin = &scene.stack.admin;
    admin.model(&format!("soak-{n}"), "scripted", CHAT, "scripted-account").await.unwrap();
    if n > 0 {
        admin.delete(&format!("/v1/models/soak-{}", n - 1)).await.unwrap();
    }
}

/// A model of a provider that was not there: new clusters, and those of the one before go.
async fn cluster(scene: &Scene<'_>, n: u64) {
    let admin = &scene.stack.admin;
    let name = |n: u64| format!("cluster-{n}");
    admin.provider(&name(n), &format!("{}/{n}", scene.stack.provider.base_url()), None).await.unwrap();
    let model = json!({"name": name(n), "targets": [{"provider": name(n), "model": "m"}]});
    admin.post("/v1/models", model).await.unwrap();
    if n > 0 {
        admin.delete(&format!("/v1/models/{}", name(n - 1))).await.unwrap();
        admin.delete(&format!("/v1/providers/{}", name(n - 1))).await.unwrap();
    }
}

/// A key made, or the one before revoked.
async fn key(scene: &Scene<'_>, n: u64, last: &mut Option<i32>) {
    match last.take() {
        None => *last = Some(scene.stack.admin.key(&scene.tag, &format!("soak-{n}"), json!({})).await.unwrap().id),
        Some(id) => scene.stack.admin.delete(&format!("/v1/keys/{id}")).await.unwrap(),
    }
}

async fn stream(scene: &Scene<'_>, http: Http, events: usize) {
    let mut all = scene.send(http, scene.chat_call(json!({"stream": true}))).await.unwrap().events();
    let all = all.rest().await.expect("the stream is not cut");
    assert_eq!(text_of(&all), "word ".repeat(events));
    assert!(all.last().unwrap().is_done());
}

#[test]
fn nobody_notices() {
    alone(async {
        let stack = Stack::start().await;
        let (scene, changes) = (stack.scene("p30").await, stack.scene("p30-changes").await);
        let events = usize::try_from(duration().as_secs()).unwrap() * 5;
        scene.answer(Answer::from(Chat::repeat("word ", events)).per_second(5));
        let url = format!("{}/chat/completions", stack.envoy.base_url());
        let load = Load::start(url, changes.key.secret.clone(), chat_body(json!({})).to_string(), PER_SECOND);
        load.successes(u64::from(PER_SECOND)).await;
        let before = stack.envoy.process().resident_bytes();
        let streams = futures::future::join_all(
            (0..STREAMS).map(|n| stream(&scene, if n % 2 == 0 { Http::H1 } else { Http::H2 }, events)),
        );
        let end = Instant::now() + duration();
        let mut last = None;
        let (policies, clusters, keys, issuers, _) = tokio::join!(
            again_and_again(Duration::from_secs(1), end, async |n| policy(&changes, n).await),
            again_and_again(Duration::from_secs(5), end, async |n| cluster(&changes, n).await),
            again_and_again(Duration::from_millis(20), end, async |n| key(&changes, n, &mut last).await),
            again_and_again(Duration::from_secs(10), end, async |n| issuer(&changes, n).await),
            streams,
        );
        let outcomes = load.stop().await;
        let grown = stack.envoy.process().resident_bytes().saturating_sub(before);
        println!(
            "{} requests, {policies} policies, {clusters} clusters, {keys} key changes, {issuers} issuers; memory grew by {} KiB",
            outcomes.sent,
            grown / 1024
        );
        assert!(outcomes.failures().is_empty(), "{:?}", outcomes.failures());
        assert!(policies >= duration().as_secs() / 2 && keys > policies && clusters > 1 && issuers > 1);
        assert!(grown < 64 * MIB, "memory grew by {grown} bytes");
        let operations: Vec<_> = outcomes.operations.iter().map(|o| o.parse().unwrap()).collect();
        stack.ledger.has_each_once(&operations, Duration::from_secs(30)).await;
    });
}

/// Declares one and waits until one of its users is served.
async fn issuer(scene: &Scene<'_>, n: u64) {
    let issuer = TokenIssuer::new(format!("https://{n}.p30.example"));
    let declared: Value = json!({"name": format!("p30-{n}"), "issuer": issuer.iss, "audiences": [AUDIENCE],
        "jwks": issuer.jwks(), "org": scene.tag});
    scene.stack.admin.post("/v1/issuers", declared).await.unwrap();
    let token = issuer.token("somebody", json!({}));
    eventually("the new issuer's users are served", Duration::from_secs(15), || async {
        let status = scene.send(Http::H1, Call::get("/v1/models").bearer(&token)).await?.status;
        anyhow::ensure!(status == 200, "{status}");
        Ok(())
    })
    .await;
}
