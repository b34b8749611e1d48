//! Clients that leave in the moment in which their waiting request goes on: Envoy lives, and those that stay are served. (That
//! of a fresh VM's policy is among the traps.)

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::{Call, Http, Scene, Stack, alone, eventually};
use tokio::task::JoinSet;

use crate::identities::{chat, issuer};

/// How many wait, of which every tenth stays.
const CLIENTS: u64 = 100;

/// Sends `call` from a hundred clients of both protocols, waits until they are `there`, and then has them leave one after
/// the other, `apart` from each other, while `go` lets them go on.
async fn leave_around(
    scene: &Scene<'_>,
    call: &Call,
    there: impl Future<Output = ()>,
    go: impl Future<Output = ()>,
    apart: Duration,
) {
    let mut leaving = Vec::new();
    let mut staying = JoinSet::new();
    for n in 0..CLIENTS {
        let http = if n % 2 == 0 { Http::H1 } else { Http::H2 };
        let (addr, call) = (scene.addr(), call.clone());
        let request = async move { anyhow::Ok(sluicegate_tests::send(http, addr, call).await?.json().await?) };
        if n % 10 == 0 {
            staying.spawn(request);
        } else {
            leaving.push(tokio::spawn(request));
        }
    }
    let leave = async {
        for client in leaving {
            client.abort();
            tokio::time::sleep(apart).await;
        }
    };
    there.await;
    tokio::join!(go, leave);
    while let Some(reply) = staying.join_next().await {
        let reply: serde_json::Value = reply.unwrap().unwrap();
        assert!(reply["choices"].is_array(), "{reply}");
    }
    assert_eq!(scene.chat(json!({})).await.unwrap().status, 200);
    assert!(scene.stack.envoy.process().is_running());
}

async fn all_wait(stack: &Stack) {
    eventually("all wait", Duration::from_secs(3), || async {
        let active = stack.envoy.stat("http.sluicegate.downstream_rq_active").await?;
        ensure!(active >= CLIENTS, "{active}");
        Ok(())
    })
    .await;
}

/// The answer who they are is held back until they all wait.
async fn of_an_identity(scene: &Scene<'_>) {
    let stack = scene.stack;
    let issuer = issuer(scene, json!({})).await;
    for (n, apart) in [0, 1, 3].into_iter().enumerate() {
        let call = chat(scene, &issuer.token(&format!("new-{n}"), json!({})));
        let mut hold = stack.database.pool().await.begin().await.unwrap();
        let lock = sqlx::query("select from issuer where name = $1 for update").bind(&scene.tag);
        lock.execute(&mut *hold).await.unwrap();
        let go = async { hold.rollback().await.unwrap() };
        leave_around(scene, &call, all_wait(stack), go, Duration::from_millis(apart)).await;
    }
}

/// They are compressed, and decoded one after the other.
async fn of_a_turn(scene: &Scene<'_>) {
    let long = "All of it, \"quoted\" and \u{e4}. ".repeat(40_000);
    let body = chat_body(json!({"messages": [{"role": "user", "content": long}]})).to_string();
    let body = zstd::stream::encode_all(body.as_bytes(), 3).unwrap();
    let call = scene.call("/v1/chat/completions", body).header("content-encoding", "zstd");
    for apart in [1, 5] {
        leave_around(scene, &call, async {}, async {}, Duration::from_millis(apart)).await;
    }
}

#[test]
fn around_each_kind_of_resume() {
    alone(async {
        let stack = Stack::start().await;
        let scene = stack.scene("resumes").await;
        of_an_identity(&scene).await;
        of_a_turn(&scene).await;
    });
}
