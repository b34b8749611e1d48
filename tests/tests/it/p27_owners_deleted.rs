//! An owner that is deleted, with its keys in use: they are refused at once and for good, nobody else notices, what is under
//! way ends in order, and what was used stays in the ledger under the owner that is gone.

use std::time::{Duration, Instant};

use anyhow::ensure;
use scripted_provider::{Answer, Chat, Hold, Rule};
use serde_json::{Value, json};
use sluicegate_tests::admin::NewKey;
use sluicegate_tests::fault::Wire;
use sluicegate_tests::ledger::Row;
use sluicegate_tests::sse::{Events, text_of};
use sluicegate_tests::stack::Wanted;
use sluicegate_tests::{Call, Http, Scene, Stack, alone, eventually, send};

/// What is deleted.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Org,
    Team,
    User,
}

impl Kind {
    /// As the Admin API and `usage` call it.
    fn name(self) -> &'static str {
        match self {
            Self::Org => "org",
            Self::Team => "team",
            Self::User => "user",
        }
    }
}

/// An owner with keys of its own, in an org where somebody else stays unless it is the org itself.
struct Doomed<'a> {
    kind: Kind,
    org: String,
    id: i64,
    /// The first belongs to the owner itself, the second to what is within it.
    keys: Vec<NewKey>,
    bystander: Scene<'a>,
}

const WORDS: [&str; 3] = ["one ", "two ", "three"];

impl<'a> Doomed<'a> {
    async fn make(stack: &'a Stack, kind: Kind) -> Doomed<'a> {
        let bystander = stack.scene("bystander").await;
        let org = match kind {
            Kind::Org => format!("doomed-{}", bystander.tag),
            Kind::Team | Kind::User => bystander.tag.clone(),
        };
        let mut doomed = Self { kind, org, id: 0, keys: Vec::new(), bystander };
        doomed.id = doomed.create().await;
        let keys = match kind {
            Kind::Org => {
                stack.admin.post("/v1/users", json!({"org": doomed.org, "name": "member"})).await.unwrap();
                vec![json!({}), json!({"user": "member"})]
            }
            Kind::Team => {
                let member = json!({"org": doomed.org, "team": "doomed", "name": "member"});
                stack.admin.post("/v1/users", member).await.unwrap();
                vec![json!({"team": "doomed"}), json!({"user": "member"})]
            }
            Kind::User => vec![json!({"user": "doomed"})],
        };
        for (i, owner) in keys.into_iter().enumerate() {
            doomed.keys.push(stack.admin.key(&doomed.org, &format!("doomed-{i}"), owner).await.unwrap());
        }
        for key in &doomed.keys {
            until(stack, key, 200, Instant::now()).await;
        }
        doomed
    }

    fn stack(&self) -> &'a Stack {
        self.bystander.stack
    }

    /// Creates the owner, under the same name each time.
    async fn create(&self) -> i64 {
        let body = match self.kind {
            Kind::Org => json!({"name": self.org}),
            Kind::Team | Kind::User => json!({"org": self.org, "name": "doomed"}),
        };
        let path = format!("/v1/{}s", self.kind.name());
        self.stack().admin.post(&path, body).await.unwrap()["id"].as_i64().unwrap()
    }

    /// A key's own, as a scene has one.
    fn tag(&self, key: &NewKey) -> String {
        format!("{}-{}", self.bystander.tag, key.id)
    }

    fn chat(&self, key: &NewKey, more: Value) -> Call {
        let mut call = self.bystander.chat_call(more);
        call.headers.retain(|(name, _)| name != "authorization" && name != "openai-project");
        call.bearer(&key.secret).header("openai-project", &self.tag(key))
    }

    /// A stream that has brought its first word and stands at the hold.
    async fn stream(&self, key: &NewKey, hold: &Hold) -> Events {
        let answer = Answer::from(Chat::text(&WORDS)).hold_events(hold);
        self.stack().provider.first(Rule::any().header("openai-project", &self.tag(key)).answer(answer));
        hold.release(2);
        let call = self.chat(key, json!({"stream": true}));
        let mut events = send(Http::H1, self.stack().envoy.addr(), call).await.unwrap().events();
        let role = events.next().await.unwrap().unwrap().json();
        assert_eq!(role["choices"][0]["delta"]["role"], "assistant");
        let word = events.next().await.unwrap().unwrap().json();
        assert_eq!(word["choices"][0]["delta"]["content"], WORDS[0]);
        events
    }

    fn usage(&self, by: &str) -> String {
        let (kind, id) = (self.kind.name(), self.id);
        format!("/v1/usage?{kind}={id}{by}")
    }
}

async fn code(stack: &Stack, key: &NewKey) -> (u16, String) {
    let reply = send(Http::H1, stack.envoy.addr(), Call::get("/v1/models").bearer(&key.secret)).await.unwrap();
    let (status, body) = (reply.status, reply.json().await.unwrap());
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// Asks until the status is `wanted`; until when after `since` the key was served.
async fn until(stack: &Stack, key: &NewKey, wanted: u16, since: Instant) -> Duration {
    let mut served = Duration::ZERO;
    let mut refused = false;
    loop {
        let (status, code) = code(stack, key).await;
        refused |= status == 403;
        match (status, code.as_str()) {
            (status, _) if status == wanted => return served,
            (200, _) => {
                assert!(!refused, "it was refused, and is served again");
                served = since.elapsed();
            }
            // Not there yet; or, when its owner has gone, refused for that before its own change has come.
            (401, "invalid_api_key") | (403, "owner_blocked") => {}
            other => panic!("{other:?} on the way to {wanted}"),
        }
        assert!(since.elapsed() < Duration::from_secs(5), "{status} {code} instead of {wanted}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// What a key has used, without its refusals.
async fn used(stack: &Stack, key: &NewKey, n: usize) -> Vec<Row> {
    eventually("what was used is in the ledger", Duration::from_secs(15), || async {
        let mut rows = stack.ledger.of_key(key.id).await?;
        rows.retain(|row| row.refusal.is_none());
        ensure!(rows.len() == n, "{rows:#?}");
        Ok(rows)
    })
    .await
}

async fn deleted(stack: &Stack, kind: Kind) {
    let doomed = Doomed::make(stack, kind).await;
    let addr = stack.envoy.addr();
    for key in &doomed.keys {
        assert_eq!(send(Http::H1, addr, doomed.chat(key, json!({}))).await.unwrap().status, 200);
    }
    let hold = Hold::new();
    let mut stream = doomed.stream(&doomed.keys[0], &hold).await;
    let asked = stack.provider.count();

    let since = Instant::now();
    stack.admin.delete(&format!("/v1/{}s/{}", kind.name(), doomed.id)).await.unwrap();
    for key in &doomed.keys {
        let served = until(stack, key, 401, since).await;
        println!("{kind:?}: served for {served:?} from the call on, unknown after {:?}", since.elapsed());
        assert!(served < Duration::from_secs(1), "{kind:?}: {served:?}");
        let reply = send(Http::H1, addr, doomed.chat(key, json!({}))).await.unwrap();
        assert_eq!(reply.status, 401);
        assert_eq!(reply.json().await.unwrap()["error"]["code"], "invalid_api_key");
    }
    assert_eq!(stack.provider.count(), asked, "nothing of them reaches a provider");
    assert_eq!(doomed.bystander.chat(json!({})).await.unwrap().status, 200, "others keep working");

    hold.open();
    let rest = stream.rest().await.unwrap();
    assert_eq!(text_of(&rest), WORDS[1..].concat());
    assert!(rest.last().unwrap().is_done(), "{kind:?}: a stream that was under way is not cut");
    still_in_the_ledger(&doomed).await;
    a_namesake_revives_nothing(&doomed).await;
}

async fn still_in_the_ledger(doomed: &Doomed<'_>) {
    let (stack, kind) = (doomed.stack(), doomed.kind);
    let mut cost = 0;
    let mut operations = Vec::new();
    for (key, n) in doomed.keys.iter().zip([2, 1]) {
        for row in used(stack, key, n).await {
            assert_eq!((row.source.as_str(), row.ended.as_str()), ("reported", "complete"), "{row:?}");
            cost += row.cost_nano.unwrap();
            operations.push(row.operation.to_string());
        }
    }
    assert!(cost > 0);
    // With its last name, and the id, for it may have had a namesake.
    let gone = format!(" (deleted {})", doomed.id);
    let is_gone =
        |named: &serde_json::Value| named.as_str().is_some_and(|name| name.ends_with(&gone) && name.len() > gone.len());
    let rows = stack.admin.get(&doomed.usage("")).await.unwrap();
    for operation in &operations {
        let mut rows = rows["items"].as_array().unwrap().iter();
        let row = rows.find(|row| row["operation"] == **operation).unwrap_or_else(|| panic!("{kind:?}: {operation}"));
        assert!(is_gone(&row[kind.name()]) && row["key"].as_str().unwrap().contains(" (deleted "), "{row}");
    }
    let sums = stack.admin.get(&doomed.usage(&format!("&by={}", kind.name()))).await.unwrap();
    let sums = sums["items"].as_array().unwrap();
    assert_eq!((sums.len(), sums[0]["cost_nano"].as_i64()), (1, Some(cost)), "{sums:?}");
    assert!(is_gone(&sums[0]["what"]), "{sums:?}");
    let option = format!("--{}", kind.name());
    let table = stack.control.cli(&["usage", &option, &doomed.id.to_string()]).await.unwrap();
    assert!(operations.iter().all(|operation| table.contains(operation)), "{table}");
}

/// A new owner of the same name, with a new key of the same name.
async fn a_namesake_revives_nothing(doomed: &Doomed<'_>) {
    let (stack, kind) = (doomed.stack(), doomed.kind);
    let id = doomed.create().await;
    assert_ne!(id, doomed.id);
    let owner = match kind {
        Kind::Org => json!({}),
        Kind::Team | Kind::User => json!({kind.name(): "doomed"}),
    };
    let new = stack.admin.key(&doomed.org, "doomed-0", owner).await.unwrap();
    until(stack, &new, 200, Instant::now()).await;
    for key in &doomed.keys {
        assert_eq!(code(stack, key).await, (401, "invalid_api_key".to_owned()), "{kind:?}");
    }
    assert_eq!(send(Http::H1, stack.envoy.addr(), doomed.chat(&new, json!({}))).await.unwrap().status, 200);
    let row = used(stack, &new, 1).await.remove(0);
    let rows = stack.admin.get(&format!("/v1/usage?{}={id}", kind.name())).await.unwrap();
    let operations: Vec<&Value> = rows["items"].as_array().unwrap().iter().map(|row| &row["operation"]).collect();
    assert_eq!(operations, [&json!(row.operation)], "{kind:?}: the new owner begins with nothing");
}

#[test]
fn with_its_keys_in_use() {
    alone(async {
        let stack = Stack::start().await;
        for kind in [Kind::Org, Kind::Team, Kind::User] {
            deleted(&stack, kind).await;
        }
    });
}

#[test]
fn while_the_envoy_cannot_hear_of_it() {
    alone(async {
        let stack = Stack::with(Wanted { faults: true, ..Wanted::default() }).await;
        for kind in [Kind::Org, Kind::Team, Kind::User] {
            let doomed = Doomed::make(&stack, kind).await;
            stack.faults().set(Wire::Stalled);
            stack.admin.delete(&format!("/v1/{}s/{}", kind.name(), doomed.id)).await.unwrap();
            // Another of the same name, before the Envoy knows that the first has gone.
            let id = doomed.create().await;
            assert_ne!(id, doomed.id);
            for key in &doomed.keys {
                assert_eq!(code(&stack, key).await.0, 200, "what the Envoy knows is served");
            }
            let since = Instant::now();
            stack.faults().set(Wire::Good);
            for key in &doomed.keys {
                let served = until(&stack, key, 401, since).await;
                assert!(served < Duration::from_secs(1), "{kind:?}: {served:?}");
            }
        }
    });
}
