//! A trap in the filter is survived: its streams end honestly, the next request is served, the fact is counted, and what
//! was sent is what is recorded.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::future::join_all;
use scripted_provider::{Answer, Chat, Hold};
use serde_json::json;
use sluicegate_tests::ledger::Row;
use sluicegate_tests::stack::{CHAT, INPUT_NANO, OUTPUT_NANO, PROVIDER_SECRET, Stack};
use sluicegate_tests::{Call, Http, Scene, alone, eventually, send, side_by_side, tools};

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::traps::{
    ANSWERED, End, SERVED, alive, breaks_off, clients_that_leave_around_a_resume, next_is_served, paused_and_streaming,
    stack, trap, trap_at, trapped, under_way,
};

#[test]
fn the_shipped_filter_cannot_be_made_to_trap() {
    let holds = |path| {
        let module = std::fs::read(path).unwrap();
        module.windows(20).any(|bytes| bytes == b"a trap was asked for")
    };
    assert!(!holds(tools::filter()));
    assert!(holds(tools::fault_filter()));
}

/// Places where nothing of an answer has gone out yet, then the others.
const BEFORE_THE_ANSWER: [&str; 6] =
    ["request-headers", "request-body", "admit", "adapter-headers", "adapter-body", "response-headers"];

#[test]
fn at_each_place() {
    side_by_side(async {
        let stack = stack(None).await;
        let scene = stack.scene("p31").await;
        let mut times = 0;
        for http in [Http::H1, Http::H2] {
            for stream in [false, true] {
                let mut end = async |place: &str| {
                    times += 1;
                    let began = Instant::now();
                    let end = End::of(&scene, http, trap_at(scene.chat_call(json!({"stream": stream})), place)).await;
                    assert!(began.elapsed() < ANSWERED, "{place}: {:?}", began.elapsed());
                    trapped(&stack, times).await;
                    alive(&stack);
                    next_is_served(&scene, http).await;
                    end
                };
                for place in BEFORE_THE_ANSWER {
                    let end = end(place).await;
                    assert!(end.is_restart(), "{place} {http:?} stream {stream}: {end:?}");
                }
                let body = end("response-body").await;
                // Of a reply that is kept back until it is whole nothing has gone out either.
                let honest = if stream { body == End::Broken } else { body.is_restart() || body == End::Broken };
                assert!(honest, "{http:?} stream {stream}: {body:?}");
                let log = end("log").await;
                assert!(log.is_served(), "{http:?} stream {stream}: {log:?}");
                // These may come before the answer, or in the middle of it.
                for place in ["tick", "grpc-message"] {
                    let end = end(place).await;
                    let honest = end.is_served() || end.is_restart() || end == End::Broken;
                    assert!(honest, "{place} {http:?} stream {stream}: {end:?}");
                }
            }
        }
    });
}

#[test]
fn is_counted_once_and_its_place_is_taken() {
    side_by_side(async {
        let mut stack = stack(None).await;
        let (tag, key) = {
            let scene = stack.scene("p31-counted").await;
            (scene.tag, scene.key)
        };
        let scene = Scene { stack: &stack, tag: tag.clone(), key: key.clone() };
        for _ in 0..3 {
            trap(&scene).await;
            next_is_served(&scene, Http::H1).await;
        }
        let told = async |stack: &Stack, traps: u64, vms: u64| {
            let envoys = stack.admin.get("/v1/envoys").await?;
            let standing = &envoys["items"][0]["standing"];
            ensure!(standing["traps"] == traps && standing["vms"] == vms, "{standing}");
            let metrics = send(Http::H1, stack.control.http(), Call::get("/metrics")).await?.text().await?;
            let counted = metrics.lines().find_map(|l| l.strip_prefix("sluicegate_envoy_traps_total "));
            ensure!(counted == Some(traps.to_string().as_str()), "{counted:?} of {traps}");
            // A dead VM's streams do not stay for ever: of both kinds there are as many as there are subscribers and VMs.
            for (kind, most) in [("sync", 2), ("flow", vms)] {
                let line = format!("sluicegate_streams_open{{kind=\"{kind}\"}} ");
                let open: f64 = metrics.lines().find_map(|l| l.strip_prefix(&line)?.parse().ok()).unwrap_or(0.0);
                ensure!(open == most as f64, "{open} {kind} streams, {most} wanted");
            }
            Ok(())
        };
        // A VM is dead after 10 s without a beat; the main thread has one, too.
        eventually("three traps are told", Duration::from_secs(25), || told(&stack, 3, 2)).await;

        // State is in shared data: a new VM needs nobody.
        stack.control.process().kill_9().await;
        let scene = Scene { stack: &stack, tag: tag.clone(), key: key.clone() };
        trap(&scene).await;
        next_is_served(&scene, Http::H2).await;
        stack.control.restart().await;
        eventually("the fourth is told", Duration::from_secs(25), || async {
            let envoys = stack.admin.get("/v1/envoys").await?;
            ensure!(envoys["items"][0]["standing"]["traps"] == 4, "{envoys}");
            Ok(())
        })
        .await;
    });
}

#[test]
fn of_twenty_paused_and_twenty_streaming() {
    side_by_side(async {
        paused_and_streaming(&stack(None).await, 20).await;
    });
}

/// What waits for a provider, and what the adapter keeps back until it is whole.
#[test]
fn while_answers_are_waited_for() {
    side_by_side(async {
        let stack = stack(None).await;
        for http in [Http::H1, Http::H2] {
            for in_adapter in [false, true] {
                let scene = stack.scene("p31-waiting").await;
                let hold = Hold::new();
                let answer = Answer::from(Chat::text(&["an", "answer"]));
                scene.answer(if in_adapter { answer.hold_body(&hold) } else { answer.hold_headers(&hold) });
                let waiting = join_all((0..5).map(|_| End::of(&scene, http, scene.chat_call(json!({})))));
                let (ends, ()) = tokio::join!(waiting, async {
                    hold.arrivals(5).await;
                    under_way(&stack, 5).await;
                    trap(&scene).await;
                    hold.open();
                });
                for end in ends {
                    let honest = end.is_restart() || in_adapter && end == End::Broken;
                    assert!(honest, "{http:?} in the adapter {in_adapter}: {end:?}");
                }
                next_is_served(&scene, http).await;
            }
        }
        alive(&stack);
    });
}

/// Envoy goes on with a request whose gate is dead. Nothing admitted its next attempt: it is not sent.
#[test]
fn before_another_attempt() {
    side_by_side(async {
        let stack = stack(None).await;
        // Takes requests, and closes when it is told to without a word.
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/v1", first.local_addr().unwrap());
        stack.admin.provider("first", &base, None).await.unwrap();
        stack.admin.credential("first-account", "first", PROVIDER_SECRET).await.unwrap();
        let target = |provider, credential| json!({"provider": provider, "model": CHAT, "credential": credential});
        let targets = [target("first", "first-account"), target("scripted", "scripted-account")];
        stack.admin.post("/v1/models", json!({"name": "two", "targets": targets})).await.unwrap();
        stack.policy_in_force().await;

        for traps in [false, true] {
            let scene = stack.scene("p31-retried").await;
            let asked = End::of(&scene, Http::H1, scene.chat_call(json!({"model": "two"})));
            let (end, ()) = tokio::join!(asked, async {
                let (mut socket, _) = first.accept().await.unwrap();
                socket.read_exact(&mut [0; 100]).await.unwrap();
                if traps {
                    trap(&scene).await;
                }
            });
            assert!(if traps { end.is_restart() } else { end.is_served() }, "{end:?}");
            alive(&stack);
            next_is_served(&scene, Http::H1).await;
            assert_eq!(scene.provider_saw(1).await.len(), if traps { 1 } else { 2 });
        }
    });
}

/// `trapped` requests reached the provider and were cut by a trap, `whole` ran to their end.
async fn some_that_are_trapped(scene: &Scene<'_>, trapped: usize, whole: usize) {
    for _ in 0..whole {
        next_is_served(scene, Http::H1).await;
    }
    scene.stack.ledger.rows(scene.key.id, whole).await;
    let mut streams = Vec::new();
    for _ in 0..trapped {
        let hold = Hold::new();
        scene.answer(Answer::from(Chat::repeat("several words each ", 40)).hold_events(&hold));
        let mut events = scene.chat(json!({"stream": true})).await.unwrap().events();
        hold.release(9);
        for _ in 0..10 {
            events.next().await.unwrap().unwrap();
        }
        streams.push((events, hold));
    }
    trap(scene).await;
    for (events, hold) in &mut streams {
        hold.open();
        breaks_off(events).await;
    }
    scene.provider_saw(trapped + whole).await;
    eventually("their lines are in the log", Duration::from_secs(5), || async {
        let log = std::fs::read_to_string(scene.stack.control.access_log())?;
        let plans = log
            .lines()
            .filter(|line| line.contains(" ADMITTED ") && line.contains(&format!("\"key\":{}", scene.key.id)));
        ensure!(plans.count() == trapped, "{log}");
        Ok(())
    })
    .await;
}

fn is_of_a_trap(row: &&Row) -> bool {
    row.ended == "trapped"
}

#[test]
fn what_was_sent_is_recorded_after_reconcile() {
    side_by_side(async {
        let stack = stack(None).await;
        let log = stack.control.access_log();
        for from_stdin in [false, true] {
            let scene = stack.scene("p31-reconciled").await;
            some_that_are_trapped(&scene, 6, 3).await;
            for expected in ["\"added\": 6", "\"added\": 0"] {
                let said = if from_stdin {
                    stack.control.cli_fed(&["reconcile", "-", "--output", "json"], File::open(&log).unwrap()).await
                } else {
                    stack.control.cli(&["reconcile", &log.to_string_lossy(), "--output", "json"]).await
                };
                let said = said.unwrap();
                assert!(said.contains(expected), "{expected}: {said}");
            }
            let rows = stack.ledger.rows(scene.key.id, 9).await;
            let estimated: Vec<&Row> = rows.iter().filter(is_of_a_trap).collect();
            assert_eq!(estimated.len(), 6, "{rows:#?}");
            for row in estimated {
                assert_eq!((row.source.as_str(), row.status, row.last, row.stream), ("estimated", 200, true, true));
                // The provider had sent ten to forty deltas of four words.
                assert!(row.input > 0 && (5..=160).contains(&row.output), "{row:?}");
                assert_eq!(row.cost_nano, Some(row.input * INPUT_NANO + row.output * OUTPUT_NANO), "{row:?}");
            }
            let (requests, attempts, cost) = stack.ledger.rolled_up(scene.key.id).await.unwrap();
            let total: i64 = rows.iter().filter_map(|row| row.cost_nano).sum();
            assert_eq!((requests, attempts, cost), (9, 9, total), "nothing is added up twice");
        }
    });
}

/// No provider was asked: nothing is billed.
#[test]
fn what_was_not_sent_costs_nothing() {
    side_by_side(async {
        let stack = stack(None).await;
        let scene = stack.scene("p31-unsent").await;
        let end = End::of(&scene, Http::H1, trap_at(scene.chat_call(json!({})), "adapter-headers")).await;
        assert!(end.is_restart(), "{end:?}");
        let log = stack.control.access_log();
        let row = eventually("the plan comes back", Duration::from_secs(5), || async {
            stack.control.cli(&["reconcile", &log.to_string_lossy()]).await?;
            let mut rows = stack.ledger.of_key(scene.key.id).await?;
            ensure!(rows.len() == 1, "{rows:?}");
            Ok(rows.remove(0))
        })
        .await;
        assert_eq!((row.ended.as_str(), row.source.as_str(), row.cost_nano), ("trapped", "none", Some(0)), "{row:?}");
        assert_eq!((row.status, row.input, row.output), (503, 0, 0), "{row:?}");
    });
}

/// The VM that traps holds one of the two Sync streams.
#[test]
fn a_revocation_works_within_a_second() {
    alone(async {
        let stack = stack(None).await;
        let mut longest = Duration::ZERO;
        for _ in 0..40 {
            let scene = stack.scene("p31-revoked").await;
            trap(&scene).await;
            let revoked = Instant::now();
            stack.admin.revoke(scene.key.id).await.unwrap();
            let refused = eventually("the key is refused", Duration::from_secs(1), || async {
                let status = scene.send(Http::H1, Call::get("/v1/models").bearer(&scene.key.secret)).await?.status;
                ensure!(status == 401, "{status}");
                Ok(revoked.elapsed())
            })
            .await;
            longest = longest.max(refused);
        }
        println!("a key revoked right after a trap was refused after {longest:?} at most");
        alive(&stack);
    });
}

#[test]
fn a_fresh_vm_makes_requests_wait_for_its_policy() {
    side_by_side(async {
        let stack = stack(None).await;
        let scene = stack.scene("p31-fresh").await;
        for http in [Http::H1, Http::H2] {
            trap(&scene).await;
            // More than are resumed in one tick.
            let ends = join_all((0..80).map(|_| End::of(&scene, http, scene.chat_call(json!({}))))).await;
            for end in ends {
                assert!(end.is_served(), "{http:?}: {end:?}");
            }
            trap(&scene).await;
            let models = End::of(&scene, http, Call::get("/v1/models").bearer(&scene.key.secret)).await;
            assert!(models.is_served(), "{http:?}: {models:?}");
        }
        scene.provider_saw(160).await;
        stack.ledger.rows(scene.key.id, 160).await;
    });
}

#[test]
fn an_envoy_without_state_says_so_in_time() {
    side_by_side(async {
        let mut stack = stack(None).await;
        let Scene { tag, key, .. } = stack.scene("p31-stateless").await;
        stack.envoy.restart().await;
        let scene = Scene { stack: &stack, tag, key };
        let mut refused = 0;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            assert!(Instant::now() < deadline, "it is never served");
            let asked = Instant::now();
            // Until its listener is there.
            let Ok(reply) = scene.chat(json!({})).await else { continue };
            assert!(asked.elapsed() < SERVED, "{:?}", asked.elapsed());
            if reply.status == 200 {
                break;
            }
            refused += 1;
            assert_eq!(reply.status, 503);
            let body = reply.json().await.unwrap();
            assert!(body["error"]["code"].is_string(), "{body}");
        }
        println!("{refused} refused before its state was there");
    });
}

#[test]
fn a_hundred_clients_leave_around_every_resume() {
    alone(async {
        let stack = stack(None).await;
        let scene = stack.scene("p31-leaving").await;
        let before = stack.envoy.stat("http.sluicegate.downstream_rq_total").await.unwrap();
        let rounds = 20;
        clients_that_leave_around_a_resume(&scene, rounds, 100).await;
        let requests = stack.envoy.stat("http.sluicegate.downstream_rq_total").await.unwrap() - before - rounds;
        let log = stack.control.access_log().to_string_lossy().into_owned();
        // Those of which a VM that trapped still had the record.
        eventually("the ledger has each of them", Duration::from_secs(20), || async {
            stack.control.cli(&["reconcile", &log]).await?;
            let rows = stack.ledger.of_key(scene.key.id).await?.len() as u64;
            ensure!(rows == requests, "{rows} of {requests}");
            Ok(())
        })
        .await;
        let rows = stack.ledger.of_key(scene.key.id).await.unwrap();
        let billed = rows.iter().filter(|row| row.source != "none").count();
        let seen = stack.provider.requests().iter().filter(|r| r.header("openai-project") == Some(&scene.tag)).count();
        println!("{requests} requests, {billed} billed, {seen} seen by the provider");
        assert!(billed >= seen, "{seen} requests reached the provider, {billed} are billed");
        assert!(rows.iter().all(|row| row.ended != "trapped"), "none was under way at a trap");
    });
}
