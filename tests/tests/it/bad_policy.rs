//! A bad policy is refused as a whole with a message that names the field, and the old one stays: by the Admin API, and by
//! a real Envoy that a bad control plane sends one to.

use prost::Message;
use serde_json::{Value, json};
use sluicegate_core::proto::dataplane::{PolicyPart, sync_down};
use sluicegate_core::proto::policy::{Position, Snapshot};
use sluicegate_tests::side_by_side;
use sluicegate_tests::stack::{CHAT, Stack, Wanted};

async fn refused(stack: &Stack, path: &str, body: Value) -> (u16, String, String) {
    let (status, reply) = stack.admin.call(reqwest::Method::POST, path, Some(&body)).await.unwrap();
    let text = |p: &str| reply.pointer(p).and_then(Value::as_str).unwrap_or_default().to_owned();
    (status, text("/error/field"), text("/error/message"))
}

#[test]
fn by_the_admin_api() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let target = |provider: &str| json!({"provider": provider, "model": "m", "credential": "scripted-account"});
        let cases = [
            ("/v1/models", json!({"name": "bad-1", "targets": [target("nobody")]}), 422, "targets[0].provider"),
            ("/v1/models", json!({"name": "bad-2", "targets": []}), 422, "targets"),
            ("/v1/models", json!({"name": CHAT, "targets": [target("scripted")]}), 409, "name"),
            ("/v1/models", json!({"name": "bad-3", "targets": [target("scripted")], "tragets": 1}), 422, "tragets"),
            (
                "/v1/prices",
                json!({"provider": "scripted", "model": "x", "input": "-1.00", "output": "1.00"}),
                422,
                "input",
            ),
        ];
        let before = stack.admin.get("/v1/models").await.unwrap();
        for (path, body, wanted, field) in cases {
            let (status, named, message) = refused(stack, path, body.clone()).await;
            assert_eq!(status, wanted, "{body}: {message}");
            assert!(named == field || message.contains(field), "{body}: {named:?} {message:?}");
            assert!(!message.is_empty());
        }
        assert_eq!(stack.admin.get("/v1/models").await.unwrap(), before, "nothing of them is in force");
        assert_eq!(stack.scene("still").await.chat(json!({})).await.unwrap().status, 200);
    });
}

type Spoil = fn(&mut Snapshot);

/// Each spoils a good snapshot, with the field that must be named.
fn spoilt() -> Vec<(Spoil, &'static str)> {
    vec![
        (|s| s.models[0].lists.clear(), "models[0].lists"),
        (|s| s.models[0].lists[0].positions[0] = Position { backend: 9_999, credential: 0 }, "backend"),
        (|s| s.models.push(s.models[0].clone()), "models["),
        (|s| s.prices[0].tiers[0].output = -1, "prices[0].tiers[0].output"),
        (|s| s.requires.push("time-travel".into()), "requires"),
        (|s| s.version = 99, "version"),
    ]
}

#[test]
fn by_an_envoy() {
    side_by_side(async {
        let stack = Stack::with(Wanted { interposer: true, ..Wanted::default() }).await;
        let scene = stack.scene("nack").await;
        let (era, mut revision, good) = stack.interposer().policy().unwrap();
        for (spoil, field) in spoilt() {
            let mut snapshot = Snapshot::decode(&good[..]).unwrap();
            spoil(&mut snapshot);
            revision += 1;
            let part = snapshot.encode_to_vec().into();
            stack.interposer().say(sync_down::M::Policy(PolicyPart { era, revision, index: 0, count: 1, part }));
            let verdict = stack.interposer().verdict(revision).await;
            assert!(!verdict.accepted, "{field}");
            assert!(verdict.field.contains(field), "{verdict:?} does not name {field}");
            assert!(!verdict.message.is_empty());
            assert_eq!(scene.chat(json!({})).await.unwrap().status, 200, "the old policy serves");
        }
        // What is no snapshot at all.
        revision += 1;
        let part = vec![0xff; 40].into();
        stack.interposer().say(sync_down::M::Policy(PolicyPart { era, revision, index: 0, count: 1, part }));
        assert!(!stack.interposer().verdict(revision).await.accepted);
        assert_eq!(scene.chat(json!({})).await.unwrap().status, 200);
    });
}
