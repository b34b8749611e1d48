//! Several control planes on one database, each with Envoys of its own: any of them may go, and nobody notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use sluicegate_tests::stack::NodeSecrets;
use sluicegate_tests::{Call, Http, Scene, Stack, alone, eventually, send, side_by_side};

async fn becomes(addr: std::net::SocketAddr, key: &str, expected: u16) {
    eventually("the key has its state", Duration::from_secs(5), || async {
        let status = send(Http::H1, addr, Call::get("/v1/models").bearer(key)).await?.status;
        anyhow::ensure!(status == expected, "{status}");
        Ok(())
    })
    .await;
}

/// What is written through one is in force at the Envoys of both.
#[test]
fn a_write_through_one_is_in_force_at_all() {
    side_by_side(async {
        let stack = Stack::start().await;
        let replica = stack.replica(NodeSecrets::default()).await;
        let other = sluicegate_tests::admin::Admin::new(replica.control.http(), sluicegate_tests::stack::ADMIN_TOKEN);
        let envoys = [stack.envoy.addr(), replica.envoy.addr()];
        for (n, admin) in [&stack.admin, &other].into_iter().enumerate() {
            let org = format!("by-{n}");
            admin.org(&org).await.unwrap();
            let key = admin.key(&org, "key", json!({})).await.unwrap();
            for envoy in envoys {
                becomes(envoy, &key.secret, 200).await;
            }
            // Revoked through the other one.
            let (by, path) = ([&other, &stack.admin][n], format!("/v1/keys/{}", key.id));
            by.delete(&path).await.unwrap();
            for envoy in envoys {
                becomes(envoy, &key.secret, 401).await;
            }
        }
    });
}

/// Migrations are whoever's comes first: four at once on an empty database.
#[test]
fn several_start_at_once_on_an_empty_database() {
    side_by_side(async {
        let database = test_postgres::database().await;
        let start = |port| {
            let database = database.clone();
            tokio::spawn(async move {
                let listen = ([127, 0, 0, 1], port).into();
                sluicegate_tests::control_plane::ControlPlane::start(&database, listen, Default::default()).await
            })
        };
        let starting: Vec<_> = (0..4).map(|_| start(sluicegate_tests::tools::free_port())).collect();
        for control in starting {
            let control = control.await.unwrap();
            let admin = sluicegate_tests::admin::Admin::new(control.http(), sluicegate_tests::stack::ADMIN_TOKEN);
            admin.get("/v1/orgs").await.unwrap();
        }
    });
}

/// Requests one after the other until told to stop; returns how many, each of which must have been served.
fn steady(
    scene: &Scene<'_>,
    addr: std::net::SocketAddr,
    stop: &Arc<AtomicBool>,
) -> tokio::task::JoinHandle<Vec<uuid::Uuid>> {
    let (stop, call) = (Arc::clone(stop), scene.chat_call(json!({})));
    tokio::spawn(async move {
        let mut operations = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            let reply = send(Http::H1, addr, call.clone()).await.unwrap();
            let (status, id) = (reply.status, reply.header("x-sluicegate-request-id").map(str::to_owned));
            let text = reply.text().await.unwrap();
            assert_eq!(status, 200, "{text}");
            operations.push(id.unwrap().parse().unwrap());
        }
        operations
    })
}

/// One is killed under load and replaced, while the other one goes on.
#[test]
fn one_is_killed_and_replaced_under_load() {
    alone(async {
        let stack = Stack::start().await;
        let mut replica = stack.replica(NodeSecrets::default()).await;
        let scene = stack.scene("replica-load").await;
        becomes(replica.envoy.addr(), &scene.key.secret, 200).await;
        eventually("both serve", Duration::from_secs(15), || async {
            let status = send(Http::H1, replica.envoy.addr(), scene.chat_call(json!({}))).await?.status;
            anyhow::ensure!(status == 200, "{status}");
            Ok(())
        })
        .await;
        let stop = Arc::new(AtomicBool::new(false));
        let loads: Vec<_> = [stack.envoy.addr(), replica.envoy.addr()]
            .into_iter()
            .flat_map(|addr| (0..4).map(move |_| addr))
            .map(|addr| steady(&scene, addr, &stop))
            .collect();
        for _ in 0..3 {
            replica.control.process().kill_9().await;
            replica.control.restart().await;
            // It has taken its Envoy over again: what is new arrives there.
            let key = stack.admin.key(&scene.tag, &uuid::Uuid::now_v7().to_string(), json!({})).await.unwrap();
            eventually("the new key is known", Duration::from_secs(15), || async {
                let status =
                    send(Http::H1, replica.envoy.addr(), Call::get("/v1/models").bearer(&key.secret)).await?.status;
                anyhow::ensure!(status == 200, "{status}");
                Ok(())
            })
            .await;
        }
        stop.store(true, Ordering::SeqCst);
        let mut operations = Vec::new();
        for load in loads {
            operations.extend(load.await.unwrap());
        }
        assert!(operations.len() > 100, "{}", operations.len());
        stack.ledger.has_each_once(&operations, Duration::from_secs(30)).await;
    });
}

/// An Envoy that is killed and comes back under the same name is another process, and is served at once.
#[test]
fn an_envoy_comes_back_under_its_name() {
    side_by_side(async {
        let mut stack = Stack::start().await;
        for _ in 0..2 {
            stack.envoy.process().kill_9().await;
            stack.envoy.restart().await;
            stack.envoy.ready().await;
            let scene = stack.scene("back").await;
            eventually("it serves", Duration::from_secs(15), || async {
                let status = scene.chat(json!({})).await?.status;
                anyhow::ensure!(status == 200, "{status}");
                Ok(())
            })
            .await;
        }
    });
}
