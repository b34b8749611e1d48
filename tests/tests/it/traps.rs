//! What tests of traps share: a stack whose filter traps where a request asks for it, and how requests end on it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::future::join_all;
use scripted_provider::{Answer, Chat, Hold};
use serde_json::json;
use sluicegate_tests::client::send_and_leave;
use sluicegate_tests::sse::Events;
use sluicegate_tests::stack::Wanted;
use sluicegate_tests::{Call, Http, Outgoing, Scene, Stack, eventually, tools};

/// By when the client of a VM that died has its answer: the longest that a paused request may be silent, and what a busy
/// machine adds.
pub(crate) const ANSWERED: Duration = Duration::from_millis(6_000);
/// By when the next request is served. A fresh VM has its policy with its first tick, which comes after 100 ms.
pub(crate) const SERVED: Duration = Duration::from_millis(1_500);

/// One worker, so that the VM that traps is the one that everybody is in.
pub(crate) async fn stack(envoy: Option<PathBuf>) -> Stack {
    Stack::with(Wanted { filter: Some(tools::fault_filter()), workers: Some(1), envoy, ..Wanted::default() }).await
}

pub(crate) fn trap_at(call: Call, place: &str) -> Call {
    call.header("x-sluicegate-fault", &format!("trap-at={place}"))
}

/// How an exchange ended for its client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In good order.
    Whole { status: u16, body: String },
    /// After its head.
    Broken,
}

impl End {
    pub(crate) async fn of(scene: &Scene<'_>, http: Http, call: Call) -> Self {
        let what = format!("{http:?} {} {}", call.method, call.path);
        let reply = scene.send(http, call).await.unwrap_or_else(|e| panic!("{what}: no reply: {e:#}"));
        let status = reply.status;
        reply.text().await.map_or(Self::Broken, |body| Self::Whole { status, body })
    }

    /// The 503 of a VM that died, in OpenAI's words.
    pub(crate) fn is_restart(&self) -> bool {
        let Self::Whole { status: 503, body } = self else { return false };
        let body: serde_json::Value = serde_json::from_str(body).unwrap_or_default();
        body["error"]["code"] == "gateway_restart" && body["error"]["type"] == "server_error"
    }

    pub(crate) fn is_served(&self) -> bool {
        matches!(self, Self::Whole { status: 200, .. })
    }
}

/// How often a VM of this Envoy trapped, as Envoy's log tells.
pub(crate) fn traps(stack: &Stack) -> usize {
    stack.envoy.process().log().matches("RuntimeError: unreachable").count()
}

pub(crate) async fn trapped(stack: &Stack, times: usize) {
    eventually("the VM traps", Duration::from_secs(5), || async {
        ensure!(traps(stack) >= times, "{} times", traps(stack));
        Ok(())
    })
    .await;
    assert_eq!(traps(stack), times);
}

/// The scene's VM traps at once.
pub(crate) async fn trap(scene: &Scene<'_>) {
    let before = traps(scene.stack);
    let end = End::of(scene, Http::H1, trap_at(scene.chat_call(json!({})), "request-headers")).await;
    assert!(end.is_restart(), "{end:?}");
    trapped(scene.stack, before + 1).await;
}

/// The next request is served, and at once.
pub(crate) async fn next_is_served(scene: &Scene<'_>, http: Http) {
    let began = Instant::now();
    let end = End::of(scene, http, scene.chat_call(json!({"stream": true}))).await;
    assert!(end.is_served(), "{http:?}: {end:?}");
    assert!(began.elapsed() < SERVED, "{http:?}: {:?}", began.elapsed());
}

/// The stream breaks off; neither the protocol nor the dialect says that it was whole.
pub(crate) async fn breaks_off(events: &mut Events) {
    loop {
        match events.next().await {
            Ok(Some(event)) => assert!(!event.is_done(), "a clean end"),
            Ok(None) => panic!("a clean end"),
            Err(_) => return,
        }
    }
}

pub(crate) fn alive(stack: &Stack) {
    assert!(stack.envoy.process().is_running(), "Envoy crashed:\n{}", stack.envoy.process().log_tail(40));
}

/// So many requests are under way in Envoy.
pub(crate) async fn under_way(stack: &Stack, count: u64) {
    eventually("the requests are under way", Duration::from_secs(10), || async {
        let active = stack.envoy.stat("http.sluicegate.downstream_rq_active").await?;
        ensure!(active == count, "{active} of {count}");
        Ok(())
    })
    .await;
}

/// `each` bodies half sent and `each` answers half streamed per protocol, then the VM traps.
pub(crate) async fn paused_and_streaming(stack: &Stack, each: usize) {
    let scene = stack.scene("p31-streams").await;
    let hold = Hold::new();
    scene.answer(Answer::from(Chat::repeat("several words each ", 40)).hold_events(&hold));
    let half = || Outgoing::Half { part: "{\"model\":\"gpt-scripted\",\"mess".into(), announced: 10_000 };
    let both = || [Http::H1, Http::H2].into_iter().flat_map(|http| vec![http; each]);

    let mut streams: Vec<Events> = join_all(both().map(async |http| {
        let mut events = scene.send(http, scene.chat_call(json!({"stream": true}))).await.unwrap().events();
        events.next().await.unwrap().unwrap();
        events
    }))
    .await;
    let paused = join_all(both().map(|http| End::of(&scene, http, scene.chat_call(json!({})).body(half()))));
    let (ended, ()) = tokio::join!(
        async {
            let ends = paused.await;
            (ends, Instant::now())
        },
        async {
            under_way(stack, 4 * each as u64).await;
            trap(&scene).await;
            let trapped = Instant::now();
            // Streams end at their next event.
            hold.open();
            join_all(streams.iter_mut().map(breaks_off)).await;
            assert!(trapped.elapsed() < ANSWERED, "{:?}", trapped.elapsed());
            let other = stack.scene("p31-next").await;
            next_is_served(&other, Http::H1).await;
            next_is_served(&other, Http::H2).await;
        }
    );
    let (ends, _) = ended;
    for end in ends {
        assert!(end.is_restart(), "{end:?}");
    }
    alive(stack);
}

/// Rounds in which the VM traps, and `clients` meet the fresh one and leave around the moment when it resumes them.
pub(crate) async fn clients_that_leave_around_a_resume(scene: &Scene<'_>, rounds: u64, clients: u64) {
    for round in 0..rounds {
        trap(scene).await;
        let leaving = (0..clients).map(async |client| {
            let http = if client % 2 == 0 { Http::H1 } else { Http::H2 };
            // The fresh VM's first tick is due 100 ms after its first request.
            let after = Duration::from_millis(60 + (client * 13 + round * 7) % 80);
            let call = scene.chat_call(json!({"stream": client % 3 == 0}));
            // Some are answered before they leave.
            let _ = send_and_leave(http, scene.addr(), call, tokio::time::sleep(after)).await;
        });
        join_all(leaving).await;
        alive(scene.stack);
        under_way(scene.stack, 0).await;
    }
    next_is_served(scene, Http::H1).await;
}
