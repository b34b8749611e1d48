//! What an Envoy refuses because of what it lacks: a control plane for too long, or the credential that pays.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use prost::Message as _;
use serde_json::json;
use sluicegate_core::proto::dataplane::{PolicyPart, sync_down};
use sluicegate_core::proto::policy::{Limits, Snapshot};
use sluicegate_tests::stack::{CHAT, PROVIDER_SECRET, Wanted};
use sluicegate_tests::{Http, Scene, Stack, alone, eventually, side_by_side, tools};

use crate::refusals::check;

const STALENESS: Duration = Duration::from_secs(6);

/// A policy that lets known keys live for [`STALENESS`] without a control plane, in force in every worker.
async fn short_patience(stack: &Stack) {
    let (era, revision, policy) = stack.interposer().policy().unwrap();
    let mut snapshot = Snapshot::decode(&policy[..]).unwrap();
    let max_staleness_ms = u64::try_from(STALENESS.as_millis()).unwrap();
    snapshot.limits = Some(Limits { max_staleness_ms, ..snapshot.limits.unwrap_or_default() });
    let (revision, part) = (revision + 1, snapshot.encode_to_vec().into());
    stack.interposer().say(sync_down::M::Policy(PolicyPart { era, revision, index: 0, count: 1, part }));
    assert!(stack.interposer().verdict(revision).await.accepted);
    eventually("every worker has the policy", Duration::from_secs(15), || async {
        let sql = "select policy_revision from envoy";
        let least: i64 = sqlx::query_scalar(sql).fetch_one(stack.ledger.pool()).await?;
        ensure!(least.cast_unsigned() == revision, "{least} of {revision}");
        Ok(())
    })
    .await;
}

#[test]
fn a_state_that_is_too_old() {
    alone(async {
        let mut stack = Stack::with(Wanted { interposer: true, ..Wanted::default() }).await;
        short_patience(&stack).await;
        let scene = stack.scene("too-old").await;
        stack.control.process().kill_9().await;
        let killed = Instant::now();
        let first = loop {
            let reply = scene.chat(json!({})).await.unwrap();
            if reply.status != 200 {
                assert_eq!(reply.status, 503);
                break reply.header("x-sluicegate-request-id").unwrap().to_owned();
            }
            assert!(killed.elapsed() < 2 * STALENESS, "known keys are served for ever");
        };
        // The last mark is a second old at most.
        let served = killed.elapsed();
        assert!(served > STALENESS - Duration::from_millis(1_500), "only for {served:?}");
        let asked = stack.provider.count();
        for more in [json!({}), json!({"stream": true}), json!({"model": "no-such"})] {
            check(&scene, scene.chat_call(more), 503, "gateway_state_too_old").await;
        }
        assert_eq!(stack.provider.count(), asked, "nothing of it reaches the provider");
        let tag = scene.tag.clone();
        let key = scene.key.clone();

        stack.control.restart().await;
        let scene = Scene { stack: &stack, tag, key };
        eventually("the key is served again", Duration::from_secs(15), || async {
            let status = scene.chat(json!({})).await?.status;
            ensure!(status == 200, "{status}");
            Ok(())
        })
        .await;
        let refused = eventually("the refusal is in the ledger", Duration::from_secs(15), || async {
            let sql = "select refusal, status, ended, source from usage where operation = $1::uuid";
            let row: Option<(String, i32, String, String)> =
                sqlx::query_as(sql).bind(&first).fetch_optional(stack.ledger.pool()).await?;
            row.context("no row")
        })
        .await;
        assert_eq!(refused, ("gateway_state_too_old".to_owned(), 503, "refused".to_owned(), "none".to_owned()));
    });
}

/// The scene's rows with this refusal: there is one, nobody was asked, and it cost nothing.
async fn booked(scene: &Scene<'_>, code: &str) {
    let row = eventually("the refusal is in the ledger", Duration::from_secs(15), || async {
        let rows = scene.stack.ledger.of_key(scene.key.id).await?;
        rows.into_iter().find(|row| row.refusal.as_deref() == Some(code)).context("no row")
    })
    .await;
    assert_eq!((row.status, row.upstream_status, row.ended.as_str()), (503, None, "unreached"), "{row:?}");
    assert_eq!((row.source.as_str(), row.cost_nano.unwrap_or(0), row.input, row.output), ("none", 0, 0, 0), "{row:?}");
}

async fn provider_saw_nothing(scene: &Scene<'_>) {
    let seen = scene.stack.provider.requests();
    assert!(seen.iter().all(|r| r.header("openai-project") != Some(&scene.tag)), "it reached the provider");
}

#[test]
fn a_credential_that_cannot_be_read() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("unpaid").await;
        let secret = tools::folder("credential").join("secret");
        let source = format!("file:{}", secret.display());
        stack.admin.provider(&scene.tag, &stack.provider.base_url(), None).await.unwrap();
        let credential = json!({"name": scene.tag, "provider": scene.tag, "source": source});
        stack.admin.post("/v1/credentials", credential).await.unwrap();
        let model = format!("model-of-{}", scene.tag);
        stack.admin.model(&model, &scene.tag, CHAT, &scene.tag).await.unwrap();
        stack.policy_in_force().await;

        check(&scene, scene.chat_call(json!({"model": model})), 503, "credential_unavailable").await;
        check(&scene, scene.chat_call(json!({"model": model, "stream": true})), 503, "credential_unavailable").await;
        provider_saw_nothing(&scene).await;
        booked(&scene, "credential_unavailable").await;
        assert_eq!(scene.chat(json!({})).await.unwrap().status, 200, "other models are served");

        std::fs::write(&secret, PROVIDER_SECRET).unwrap();
        eventually("the credential is there", Duration::from_secs(10), || async {
            let status = scene.chat(json!({"model": model})).await?.status;
            ensure!(status == 200, "{status}");
            Ok(())
        })
        .await;
    });
}

#[test]
fn a_credential_that_was_sealed_for_another_envoy() {
    side_by_side(async {
        let mut stack = Stack::start().await;
        let first = stack.scene("sealed").await;
        let (tag, key) = (first.tag.clone(), first.key.clone());
        for seal_key in ["11".repeat(32), String::new()] {
            stack.envoy.restart_with(&[("SLUICEGATE_SEAL_KEY", &seal_key)]).await;
            stack.envoy.ready().await;
            let scene = Scene { stack: &stack, tag: tag.clone(), key: key.clone() };
            eventually("the Envoy has its clusters", Duration::from_secs(20), || async {
                let body = scene.send(Http::H1, scene.chat_call(json!({}))).await?.json().await?;
                ensure!(body["error"]["code"] == "credential_unavailable", "{body}");
                Ok(())
            })
            .await;
            check(&scene, scene.chat_call(json!({})), 503, "credential_unavailable").await;
            check(&scene, scene.chat_call(json!({"stream": true})), 503, "credential_unavailable").await;
            provider_saw_nothing(&scene).await;
            booked(&scene, "credential_unavailable").await;
        }
    });
}
