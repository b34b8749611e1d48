//! An Envoy holds what its group may hold, and no more: of whose keys, of which models, of which credentials.

use std::time::Duration;

use scripted_provider::{Provider, Script};
use serde_json::{Value, json};
use sluicegate_core::proto::dataplane::sync_down::M;
use sluicegate_tests::issuer::{AUDIENCE, TokenIssuer};
use sluicegate_tests::stack::{CHAT, PROVIDER_SECRET, Replica};
use sluicegate_tests::{Call, Http, Stack, eventually, send, side_by_side};

const OTHER_SECRET: &str = "sk-other-provider-canary-31415926535897";
const OTHER_MODEL: &str = "other-model";

/// Status and code of a chat through the replica's Envoy.
async fn ask(replica: &Replica, key: &str, model: &str) -> anyhow::Result<(u16, String)> {
    let body = json!({"model": model, "messages": [{"role": "user", "content": "Hello"}]});
    let call = Call::post("/v1/chat/completions", body.to_string()).bearer(key);
    let reply = send(Http::H1, replica.envoy.addr(), call).await?;
    let status = reply.status;
    Ok((status, reply.json().await?["error"]["code"].as_str().unwrap_or_default().to_owned()))
}

async fn becomes(replica: &Replica, key: &str, model: &str, expected: (u16, &str)) {
    eventually("the answer is the expected one", Duration::from_secs(20), || async {
        // Several times on end: each worker hears of it in its own time.
        for _ in 0..6 {
            let (status, code) = ask(replica, key, model).await?;
            anyhow::ensure!((status, code.as_str()) == expected, "{status} {code} instead of {expected:?}");
        }
        Ok(())
    })
    .await;
}

async fn scope(stack: &Stack, scope: Value) {
    let (status, body) =
        stack.admin.call(reqwest::Method::PATCH, "/v1/groups/edge", Some(&scope)).await.expect("an answer");
    assert_eq!(status, 200, "{body}");
}

/// Ids of the credentials that were sent with something in them.
fn credentials_sent(replica: &Replica) -> Vec<u32> {
    let relayed = replica.interposer.relayed().into_iter().filter_map(|message| message.m);
    let sealed = relayed.filter_map(|m| match m {
        M::Credential(credential) if !credential.sealed.is_empty() => Some(credential.id),
        _ => None,
    });
    sealed.collect()
}

/// Whether a process has these bytes anywhere in its memory.
fn memory_has(pid: u32, needle: &[u8]) -> bool {
    use std::os::unix::fs::FileExt as _;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let writable = maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|mode| mode.starts_with("rw")));
    let ranges = writable.filter_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    });
    for (from, to) in ranges {
        // V8 reserves more than there is: pieces that cannot be read are not there.
        let mut at = from;
        while at < to {
            let mut piece = vec![0; usize::try_from((to - at).min(1 << 20)).unwrap() + needle.len()];
            let read = memory.read_at(&mut piece, at).unwrap_or(0);
            if memchr::memmem::find(&piece[..read], needle).is_some() {
                return true;
            }
            at += 1 << 20;
        }
    }
    false
}

#[test]
fn an_envoy_of_a_group_with_limits() {
    side_by_side(async {
        let stack = Stack::start().await;
        let (ours, theirs) = (stack.scene("p42-ours").await, stack.scene("p42-theirs").await);
        let other = Provider::start(Script::new().require_bearer(OTHER_SECRET)).await.unwrap();
        stack.admin.provider("other", &other.base_url(), None).await.unwrap();
        stack.admin.credential("other-account", "other", OTHER_SECRET).await.unwrap();
        stack.admin.model(OTHER_MODEL, "other", "m", "other-account").await.unwrap();
        let mixed = json!({"name": "mixed", "targets": [
            {"provider": "other", "model": "m", "credential": "other-account"},
            {"provider": "scripted", "model": CHAT, "credential": "scripted-account"},
        ]});
        stack.admin.post("/v1/models", mixed).await.unwrap();
        let credentials = stack.admin.get("/v1/credentials").await.unwrap();
        let of_other = credentials["items"].as_array().unwrap().iter().find(|c| c["name"] == "other-account").unwrap();
        let of_other = u32::try_from(of_other["id"].as_u64().unwrap()).unwrap();

        let limits = json!({"name": "edge", "orgs": [ours.tag], "credentials": ["scripted-account"]});
        stack.admin.post("/v1/groups", limits).await.unwrap();
        let replica = stack.replica(stack.node_token("edge-1", "edge").await).await;
        becomes(&replica, &ours.key.secret, CHAT, (200, "")).await;
        becomes(&replica, &ours.key.secret, "mixed", (200, "")).await;
        becomes(&replica, &ours.key.secret, OTHER_MODEL, (404, "model_not_found")).await;
        becomes(&replica, &theirs.key.secret, CHAT, (401, "invalid_api_key")).await;
        assert!(!credentials_sent(&replica).contains(&of_other));
        let pid = replica.envoy.process().pid();
        assert!(memory_has(pid, PROVIDER_SECRET.as_bytes()), "what it holds is found, so the search works");
        assert!(!memory_has(pid, OTHER_SECRET.as_bytes()));
        assert_eq!(other.requests().len(), 0);

        // A user of an org that is not the group's is not made there.
        let issuer = TokenIssuer::new("https://p42.example");
        let declared = json!({"name": "p42", "issuer": issuer.iss, "audiences": [AUDIENCE], "jwks": issuer.jwks(),
            "org": theirs.tag});
        stack.admin.post("/v1/issuers", declared).await.unwrap();
        becomes(&replica, &issuer.token("u", json!({})), CHAT, (403, "identity_not_allowed")).await;
        let users = stack.admin.get("/v1/users").await.unwrap();
        assert_eq!(users["items"].as_array().map(Vec::len), Some(0), "{users}");

        scope(&stack, json!({"orgs": null, "credentials": null})).await;
        becomes(&replica, &theirs.key.secret, OTHER_MODEL, (200, "")).await;
        assert!(credentials_sent(&replica).contains(&of_other));

        scope(&stack, json!({"orgs": [ours.tag], "models": [CHAT], "credentials": ["scripted-account"]})).await;
        becomes(&replica, &theirs.key.secret, CHAT, (401, "invalid_api_key")).await;
        becomes(&replica, &ours.key.secret, OTHER_MODEL, (404, "model_not_found")).await;
        becomes(&replica, &ours.key.secret, "mixed", (404, "model_not_found")).await;
        becomes(&replica, &ours.key.secret, CHAT, (200, "")).await;
        let relayed = replica.interposer.relayed();
        let withdrawn = |m: &Option<M>| matches!(m, Some(M::Credential(c)) if c.id == of_other && c.sealed.is_empty());
        assert!(relayed.iter().any(|message| withdrawn(&message.m)));
        // The Envoy of the group without limits noticed nothing.
        assert_eq!(theirs.chat(json!({})).await.unwrap().status, 200);
    });
}
