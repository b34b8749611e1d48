//! A key works within a second of its creation and is refused within a second of its revocation, whatever the number of
//! keys, and the same from a reconnect on; so does blocking an org.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use sluicegate_tests::fault::Wire;
use sluicegate_tests::stack::{Stack, Wanted};
use sluicegate_tests::stats::{longest, median};
use sluicegate_tests::{Call, Http, alone, eventually, send};

const TRIES: usize = 40;

/// Asks `GET /v1/models` until the status is `wanted`; how long that took from `since`.
async fn until(stack: &Stack, secret: &str, wanted: u16, since: Instant) -> Duration {
    let deadline = since + Duration::from_secs(5);
    loop {
        let reply = send(Http::H1, stack.envoy.addr(), Call::get("/v1/models").bearer(secret)).await.unwrap();
        if reply.status == wanted {
            return since.elapsed();
        }
        assert!(Instant::now() < deadline, "{} instead of {wanted} after 5 s", reply.status);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn create_and_revoke(stack: &Stack, what: &str) {
    stack.admin.org(what).await.unwrap();
    let (mut created, mut revoked) = (Vec::new(), Vec::new());
    for i in 0..TRIES {
        // From before the call: the commit is somewhere in it.
        let since = Instant::now();
        let key = stack.admin.key(what, &format!("k{i}"), json!({})).await.unwrap();
        created.push(until(stack, &key.secret, 200, since).await);
        let since = Instant::now();
        stack.admin.revoke(key.id).await.unwrap();
        revoked.push(until(stack, &key.secret, 401, since).await);
    }
    check(&format!("created, {what}"), &created);
    check(&format!("revoked, {what}"), &revoked);
}

fn check(what: &str, times: &[Duration]) {
    println!("{what}: median {:?}, longest {:?}", median(times), longest(times));
    assert!(longest(times) < Duration::from_secs(1), "{what}: {times:?}");
    assert!(median(times) < Duration::from_millis(50), "{what}: {times:?}");
}

/// `n` more keys of an org, put into the store while nobody reads it.
async fn add_keys(stack: &Stack, org: &str, n: i32) {
    let sql = "insert into api_key (public_id, hash, name, org_id, profile_id)
        select 'bulk' || i, sha256(('sk-sg-bulk' || i || '-secret')::bytea), 'bulk' || i,
               (select id from org where name = $1), (select profile_id from api_key limit 1)
        from generate_series(1, $2) i";
    sqlx::query(sql).bind(org).bind(n).execute(stack.ledger.pool()).await.unwrap();
    let sql = "update revision set revision = revision + 1, keys = revision + 1";
    sqlx::query(sql).execute(stack.ledger.pool()).await.unwrap();
}

fn bulk_key(i: u32) -> String {
    format!("sk-sg-bulk{i}-secret")
}

#[test]
fn keys_follow_the_store() {
    alone(async {
        let mut stack = Stack::with(Wanted { faults: true, ..Wanted::default() }).await;
        stack.admin.org("big").await.unwrap();
        for i in 0..10 {
            stack.admin.key("big", &format!("small{i}"), json!({})).await.unwrap();
        }
        create_and_revoke(&stack, "10-keys").await;

        stack.control.process().terminate().await;
        add_keys(&stack, "big", 100_000).await;
        stack.control.restart().await;
        stack.envoy.restart().await;
        stack.envoy.ready().await;
        create_and_revoke(&stack, "100000-keys").await;
        after_a_stream_loss(&stack).await;
        blocking_an_org(&stack).await;
    });
}

/// What changed while the streams were down holds within a second of the wire's return.
async fn after_a_stream_loss(stack: &Stack) {
    let (mut created, mut revoked) = (Vec::new(), Vec::new());
    for i in 0..5 {
        let old = stack.admin.key("big", &format!("old{i}"), json!({})).await.unwrap();
        until(stack, &old.secret, 200, Instant::now()).await;
        stack.faults().set(Wire::Reset);
        stack.admin.revoke(old.id).await.unwrap();
        let new = stack.admin.key("big", &format!("new{i}"), json!({})).await.unwrap();
        let still = send(Http::H1, stack.envoy.addr(), Call::get("/v1/models").bearer(&old.secret)).await.unwrap();
        assert_eq!(still.status, 200, "a known key is served while the control plane is away");
        let hellos = hellos(stack).await;
        stack.faults().set(Wire::Good);
        let reconnected = reconnect(stack, hellos).await;
        revoked.push(until(stack, &old.secret, 401, reconnected).await);
        created.push(until(stack, &new.secret, 200, reconnected).await);
    }
    for times in [&created, &revoked] {
        assert!(longest(times) < Duration::from_secs(1), "created {created:?}, revoked {revoked:?}");
    }
    println!("after a reconnect: created {:?}, revoked {:?}", median(&created), median(&revoked));
}

/// How many streams to the control plane Envoy has opened so far.
async fn hellos(stack: &Stack) -> u64 {
    stack.envoy.stat("cluster.sluicegate-control-plane.upstream_cx_total").await.unwrap()
}

/// The moment from which a new connection was seen.
async fn reconnect(stack: &Stack, before: u64) -> Instant {
    eventually("Envoy reconnects", Duration::from_secs(30), || async {
        ensure!(hellos(stack).await > before);
        let active = stack.envoy.stat("cluster.sluicegate-control-plane.upstream_cx_active").await?;
        ensure!(active > 0);
        Ok(Instant::now())
    })
    .await
}

async fn blocking_an_org(stack: &Stack) {
    let some = [bulk_key(1), bulk_key(50_000), bulk_key(100_000)];
    for key in &some {
        until(stack, key, 200, Instant::now()).await;
    }
    let mut blocked = Vec::new();
    for _ in 0..5 {
        let since = Instant::now();
        stack.admin.block_org("big").await.unwrap();
        for key in &some {
            blocked.push(until(stack, key, 403, since).await);
        }
        stack.admin.unblock_org("big").await.unwrap();
        for key in &some {
            until(stack, key, 200, Instant::now()).await;
        }
    }
    check("an org of 100000 keys blocked", &blocked);
}
