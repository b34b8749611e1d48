//! Where Envoy's configuration lacks what the filter cannot work without, a request gets 503 `filter_misconfigured` within a
//! second: it never hangs, and it never reaches a provider with anything to be let in by. A slow client is told apart.

use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use sluicegate_tests::attached::{CLUSTER, Pieces, Theirs, knows, stack};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::ledger::Row;
use sluicegate_tests::stack::CHAT;
use sluicegate_tests::{Call, Http, Outgoing, Scene, eventually, send, side_by_side};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// An Envoy of theirs with pieces that `broken` has been at.
async fn envoy(broken: impl FnOnce(&mut Pieces)) -> (Theirs, Envoy) {
    let stack = stack().await;
    let theirs = Theirs::new(stack.provider.addr()).await;
    let mut pieces = Pieces::render(stack, &["--scope-path-prefix", "/v1"]);
    broken(&mut pieces);
    let envoy = theirs.envoy(Some(&pieces)).await;
    (theirs, envoy)
}

/// A chat request of `size` bytes or a little more.
fn chat(scene: &Scene<'_>, size: usize) -> Call {
    scene.chat_call(json!({"messages": [{"role": "user", "content": "x".repeat(size)}]}))
}

/// An option that was found missing is taken as known for a second; after it, the next request finds out again.
const FORGOTTEN: Duration = Duration::from_millis(1_200);

/// Each kind of request that has a body gets its 503 in time, and says what is missing.
async fn all_are_refused(envoy: &Envoy, scene: &Scene<'_>, missing: &str, between: Duration) {
    let mut asked = 0;
    for http in [Http::H1, Http::H2] {
        let trailers = vec![("x-a".to_owned(), "b".to_owned())];
        let Outgoing::Whole(body) = chat(scene, 10).body else { panic!() };
        let calls = [
            chat(scene, 10),
            chat(scene, 10).in_pieces(7),
            chat(scene, 3 << 20),
            chat(scene, 10).body(Outgoing::Pieces { pieces: vec![body], trailers }),
            scene.chat_call(json!({"stream": true})),
        ];
        for call in calls {
            let what = format!("{http:?} {:.80}", format!("{:?}", call.body));
            tokio::time::sleep(between).await;
            let started = Instant::now();
            let reply = send(http, envoy.addr(), call).await.unwrap();
            let (status, took) = (reply.status, started.elapsed());
            let body: Value = reply.json().await.unwrap();
            assert_eq!((status, &body["error"]["code"]), (503, &json!("filter_misconfigured")), "{what}: {body}");
            assert!(body["error"]["message"].as_str().unwrap().contains(missing), "{what}: {body}");
            assert!(took < Duration::from_secs(1), "{what}: {took:?}");
            asked += 1;
        }
    }
    eventually("each is in the ledger, and cost nothing", Duration::from_secs(15), || async {
        let rows = scene.stack.ledger.of_key(scene.key.id).await?;
        // Before it had a policy the Envoy refused to list models.
        let rows = rows.iter().filter(|row| row.refusal.as_deref() != Some("gateway_not_ready"));
        let good = |row: &&Row| row.refusal.as_deref() == Some("filter_misconfigured") && row.cost_nano == Some(0);
        let (good, bad): (Vec<_>, Vec<_>) = rows.partition(good);
        anyhow::ensure!(bad.is_empty() && good.len() == asked, "{} of {asked}, {bad:?}", good.len());
        Ok(())
    })
    .await;
    eventually("it is counted", Duration::from_secs(5), || async {
        let counted = envoy.stat("sluicegate_refusals_total.code[filter_misconfigured]").await?;
        anyhow::ensure!(counted == asked as u64, "{counted} of {asked}");
        Ok(())
    })
    .await;
    let said = format!("filter_misconfigured: Envoy is configured without {missing}");
    assert!(envoy.process().log().contains(&said), "{}", envoy.process().log_tail(20));
}

/// What the provider got of this scene's.
fn reached(scene: &Scene<'_>) -> Vec<scripted_provider::Recorded> {
    let requests = scene.stack.provider.requests();
    requests.into_iter().filter(|r| r.header("openai-project") == Some(&scene.tag)).collect()
}

#[test]
fn a_gate_that_never_sees_bodies() {
    side_by_side(async {
        let scene = stack().await.scene("gate-option").await;
        let (theirs, envoy) = envoy(|pieces| {
            Pieces::plugin(&mut pieces.gate).remove("allow_on_headers_stop_iteration").unwrap();
        })
        .await;
        knows(&envoy, &scene).await;
        all_are_refused(&envoy, &scene, "allow_on_headers_stop_iteration in the gate's entry", FORGOTTEN).await;
        for http in [Http::H1, Http::H2] {
            let status = async |call: Call| send(http, envoy.addr(), call).await.unwrap().status;
            assert_eq!(status(scene.chat_call(json!({})).body(Outgoing::Nothing)).await, 400, "what has no body");
            assert_eq!(status(Call::get("/v1/models").bearer(&scene.key.secret)).await, 200);
            assert_eq!(status(Call::post("/theirs", "x")).await, 200, "what is not ours");
        }
        assert_eq!(theirs.app.take().len(), 2);
        assert_eq!(reached(&scene).len(), 0);
    });
}

#[test]
fn an_adapter_that_never_sees_bodies() {
    side_by_side(async {
        let scene = stack().await.scene("adapter-option").await;
        let (_theirs, envoy) = envoy(|pieces| {
            Pieces::plugin(&mut pieces.adapter).remove("allow_on_headers_stop_iteration").unwrap();
        })
        .await;
        knows(&envoy, &scene).await;
        all_are_refused(&envoy, &scene, "allow_on_headers_stop_iteration in the adapter's entry", FORGOTTEN).await;
        assert_eq!(reached(&scene).len(), 0);
    });
}

#[test]
fn a_router_without_the_adapter() {
    side_by_side(async {
        let scene = stack().await.scene("no-adapter").await;
        // Their route does not even remove what ours would.
        let (_theirs, envoy) = envoy(|pieces| {
            pieces.adapter = None;
            let route = pieces.route.as_mut().and_then(Value::as_object_mut).unwrap();
            route.remove("request_headers_to_remove").unwrap();
        })
        .await;
        knows(&envoy, &scene).await;
        all_are_refused(&envoy, &scene, "the adapter in the router's upstream_http_filters", Duration::ZERO).await;
        let reached = reached(&scene);
        assert_eq!(reached.len(), 10);
        for request in reached {
            assert_eq!(request.target, "/sluicegate/unadapted", "it asks for nothing that exists");
            let all = format!("{:?}", request.headers);
            assert!(!all.contains("sk-") && !all.contains("authorization"), "{all}");
        }
    });
}

#[test]
fn entries_in_two_vms() {
    side_by_side(async {
        let scene = stack().await.scene("two-vms").await;
        let (theirs, envoy) = envoy(|pieces| {
            Pieces::plugin(&mut pieces.adapter)["vm_config"]["vm_id"] = json!("another");
        })
        .await;
        knows(&envoy, &scene).await;
        all_are_refused(&envoy, &scene, "the same vm_id and code in both entries", Duration::ZERO).await;
        assert_eq!(reached(&scene).len(), 0);
        assert_eq!(
            send(Http::H1, envoy.addr(), Call::post("/theirs", "x")).await.unwrap().status,
            200,
            "what is not ours"
        );
        assert_eq!(theirs.app.take().len(), 1);
    });
}

#[test]
fn no_route_for_what_is_admitted() {
    side_by_side(async {
        let scene = stack().await.scene("no-route").await;
        let (theirs, envoy) = envoy(|pieces| pieces.route = None).await;
        knows(&envoy, &scene).await;
        all_are_refused(&envoy, &scene, "the route for admitted requests", Duration::ZERO).await;
        assert_eq!(theirs.app.take(), [], "and their own service, which their last route leads to, is spared");
        assert_eq!(reached(&scene).len(), 0);
    });
}

/// Neither where nothing is said of the provider, nor where the cluster that is named is not there.
#[test]
fn no_cluster_for_a_provider() {
    side_by_side(async {
        for (said, instead) in [(r#""scripted":"#, r#""other":"#), (CLUSTER, "nowhere")] {
            let scene = stack().await.scene("no-cluster").await;
            let (_theirs, envoy) = envoy(|pieces| {
                for entry in [&mut pieces.gate, &mut pieces.adapter] {
                    let value = &mut Pieces::plugin(entry)["configuration"]["value"];
                    let text = value.as_str().unwrap();
                    assert_eq!(text.matches(said).count(), 1, "{text}");
                    *value = text.replace(said, instead).into();
                }
            })
            .await;
            knows(&envoy, &scene).await;
            all_are_refused(&envoy, &scene, "a cluster for this model's provider", Duration::ZERO).await;
            assert_eq!(reached(&scene).len(), 0);
        }
    });
}

/// Without a gate nothing is marked: what is ours gets no further than the adapter.
#[test]
fn a_listener_without_the_gate() {
    side_by_side(async {
        let scene = stack().await.scene("no-gate").await;
        let (theirs, envoy) = envoy(|pieces| {
            pieces.gate = None;
            // Whatever leads to a provider, too.
            pieces.route = Some(json!({"match": {"prefix": "/past/"}, "route": {"cluster": CLUSTER}}));
        })
        .await;
        for http in [Http::H1, Http::H2] {
            let past = Call { path: "/past/the/gate".into(), ..scene.chat_call(json!({})) };
            for call in [scene.chat_call(json!({})), Call::get("/v1/models").bearer(&scene.key.secret), past] {
                let reply = send(http, envoy.addr(), call).await.unwrap();
                assert_eq!(reply.status, 503);
                let body = reply.json().await.unwrap();
                assert_eq!(body["error"]["code"], "filter_misconfigured");
                assert!(body["error"]["message"].as_str().unwrap().contains("the gate in the listener's http_filters"));
            }
            assert_eq!(send(http, envoy.addr(), Call::get("/theirs")).await.unwrap().status, 200, "what is not ours");
        }
        assert_eq!(theirs.app.take().len(), 2);
        assert_eq!(reached(&scene).len(), 0);
    });
}

/// Sends the head of a chat request, then after `pause` its body; what came before the body, and the status.
async fn slowly(envoy: &Envoy, scene: &Scene<'_>, pause: Duration) -> (String, u16) {
    let body = json!({"model": CHAT, "messages": []}).to_string();
    let mut socket = TcpStream::connect(envoy.addr()).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gw\r\nauthorization: Bearer {}\r\nopenai-project: {}\r\n\
         content-length: {}\r\n\r\n",
        scene.key.secret,
        scene.tag,
        body.len(),
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut early = vec![0; 1024];
    let early = match tokio::time::timeout(pause, socket.read(&mut early)).await {
        Ok(n) => String::from_utf8_lossy(&early[..n.unwrap()]).into_owned(),
        Err(_) => String::new(),
    };
    socket.write_all(body.as_bytes()).await.unwrap();
    let mut status = [0; 12];
    socket.read_exact(&mut status).await.unwrap();
    (early, std::str::from_utf8(&status[9..]).unwrap().parse().unwrap())
}

#[test]
fn a_slow_client_of_a_fresh_vm_is_served() {
    side_by_side(async {
        let scene = stack().await.scene("slow").await;
        let (_theirs, envoy) = envoy(|_| ()).await;
        knows(&envoy, &scene).await;
        assert_eq!(slowly(&envoy, &scene, Duration::from_secs(2)).await, (String::new(), 200));
        assert_eq!(
            slowly(&envoy, &scene, Duration::from_secs(6)).await,
            (String::new(), 200),
            "of an older VM at ease"
        );
        let pieces = Outgoing::Half { part: Bytes::from_static(b"{"), announced: 100 };
        let stalled = send(Http::H2, envoy.addr(), scene.chat_call(json!({})).body(pieces));
        assert!(tokio::time::timeout(Duration::from_secs(2), stalled).await.is_err());
        assert_eq!(reached(&scene).len(), 2);
    });
}

/// Where the option is missing, one that sends nothing cannot be told from one that sent nothing: neither hangs.
#[test]
fn a_silent_client_does_not_wait_for_ever() {
    side_by_side(async {
        let scene = stack().await.scene("silent").await;
        let (_theirs, envoy) = envoy(|pieces| {
            Pieces::plugin(&mut pieces.gate).remove("allow_on_headers_stop_iteration").unwrap();
        })
        .await;
        knows(&envoy, &scene).await;
        assert_eq!(slowly(&envoy, &scene, Duration::from_secs(2)).await, (String::new(), 503));
        tokio::time::sleep(FORGOTTEN).await;
        for http in [Http::H1, Http::H2] {
            let trailers = vec![("x-a".to_owned(), "b".to_owned())];
            let empty = scene.chat_call(json!({})).body(Outgoing::Pieces { pieces: Vec::new(), trailers });
            let started = Instant::now();
            assert_eq!(send(http, envoy.addr(), empty).await.unwrap().status, 408, "{http:?}");
            assert!((5..7).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
        }
        assert_eq!(reached(&scene).len(), 0);
    });
}
