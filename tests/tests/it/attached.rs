//! An Envoy that is somebody else's: with our pieces in it, requests to models are served and metered, and nothing else of
//! it changes by a byte.

use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use serde_json::{Value, json};
use sluicegate_core::exchange::credential::CARRIERS;
use sluicegate_tests::attached::{Pieces, Theirs, knows, stack};
use sluicegate_tests::echo::Seen;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::sse::text_of;
use sluicegate_tests::stack::{ALIAS, CHAT, INPUT_NANO, OUTPUT_NANO, PROVIDER_SECRET};
use sluicegate_tests::{Call, Http, Outgoing, Scene, eventually, send, side_by_side, tools};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const SCOPE: &[&str] = &["--scope-path-prefix", "/v1"];

async fn only_served<'a>(name: &str) -> (Theirs, Envoy, Scene<'a>) {
    let (stack, pieces) = (stack().await, Pieces::render(stack().await, SCOPE));
    let (theirs, scene) = (Theirs::new(stack.provider.addr()).await, stack.scene(name).await);
    let envoy = theirs.envoy(Some(&pieces)).await;
    knows(&envoy, &scene).await;
    (theirs, envoy, scene)
}

#[test]
fn requests_are_served_and_metered() {
    side_by_side(async {
        let (theirs, envoy, _) = only_served("attached").await;
        let stack = stack().await;
        for http in [Http::H1, Http::H2] {
            let large = json!({"model": ALIAS, "messages": [{"role": "user", "content": "x".repeat(2 << 20)}]});
            let trailers = vec![("x-a".to_owned(), "b".to_owned())];
            let pieces = vec![Bytes::from(chat_body(json!({})).to_string())];
            let with_trailers = Outgoing::Pieces { pieces, trailers };
            for (streamed, more, body) in [
                (false, json!({}), None),
                (true, json!({"stream": true}), None),
                (false, large.clone(), None),
                (false, json!({}), Some(with_trailers)),
            ] {
                let scene = stack.scene("attached").await;
                knows(&envoy, &scene).await;
                let mut call = scene.chat_call(more);
                call.body = body.unwrap_or(call.body);
                let reply = send(http, envoy.addr(), call).await.unwrap();
                assert_eq!(reply.status, 200);
                assert_eq!(reply.header("x-lua"), Some("response"), "their filters work on it as on any");
                assert_eq!(reply.header("x-sluicegate-cost").is_some(), !streamed);
                if streamed {
                    let events = reply.events().rest().await.unwrap();
                    assert_eq!(text_of(&events), "Hello from the scripted provider.");
                } else {
                    let body = reply.json().await.unwrap();
                    assert_eq!(body["choices"][0]["message"]["content"], "Hello from the scripted provider.");
                }
                let seen = &scene.provider_saw(1).await[0];
                assert_eq!(seen.target, "/v1/chat/completions");
                assert_eq!(seen.header("authorization"), Some(format!("Bearer {PROVIDER_SECRET}").as_str()));
                assert_eq!(seen.json()["model"], CHAT, "an alias is edited");
                let row = served(&scene).await;
                assert_eq!((row.input, row.output, row.source.as_str()), (12, 7, "reported"));
                assert_eq!(row.cost_nano, Some(12 * INPUT_NANO + 7 * OUTPUT_NANO));
                assert_eq!((row.status, row.ended.as_str(), row.stream), (200, "complete", streamed));
            }
        }
        assert_eq!(theirs.app.take(), []);
    });
}

/// The scene's only row that is no refusal to list models before there was a policy.
async fn served(scene: &Scene<'_>) -> sluicegate_tests::ledger::Row {
    eventually("the ledger has the request", Duration::from_secs(15), || async {
        let rows = scene.stack.ledger.of_key(scene.key.id).await?;
        let mut rows: Vec<_> = rows.into_iter().filter(|row| row.refusal.is_none()).collect();
        ensure!(rows.len() == 1, "{rows:#?}");
        Ok(rows.remove(0))
    })
    .await
}

#[test]
fn over_tls() {
    side_by_side(async {
        let (theirs, envoy, scene) = only_served("attached-tls").await;
        let ca = reqwest::Certificate::from_pem(theirs.ca.pem().as_bytes()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([ca]).build().unwrap();
        let url = |path: &str| format!("https://localhost:{}{path}", theirs.tls_port());
        let request = client.post(url("/v1/chat/completions")).bearer_auth(&scene.key.secret);
        let reply = request.body(chat_body(json!({})).to_string()).send().await.unwrap();
        assert_eq!(reply.status(), 200);
        assert_eq!(served(&scene).await.status, 200);
        assert_eq!(client.get(url("/theirs")).send().await.unwrap().status(), 200);
        assert_eq!(theirs.app.take().len(), 1);
        drop(envoy);
    });
}

/// Whatever their route forgets to remove, and whatever came with the request or was added on the way.
#[test]
fn a_provider_sees_nothing_that_is_not_for_it() {
    side_by_side(async {
        let stack = stack().await;
        let theirs = Theirs::new(stack.provider.addr()).await;
        let mut pieces = Pieces::render(stack, SCOPE);
        let route = pieces.route.as_mut().and_then(Value::as_object_mut).unwrap();
        route.remove("request_headers_to_remove").unwrap();
        let envoy = theirs.envoy(Some(&pieces)).await;
        let scene = stack.scene("attached-headers").await;
        knows(&envoy, &scene).await;
        for http in [Http::H1, Http::H2] {
            let mut call = scene.chat_call(json!({}));
            for carrier in CARRIERS.iter().filter(|c| **c != "authorization") {
                call = call.header(carrier, "canary-of-a-client");
            }
            for name in
                ["x-forwarded-for", "x-request-id", "traceparent", "x-sluicegate-list", "x-envoy-max-retries", "x-any"]
            {
                call = call.header(name, "canary-of-a-client");
            }
            call.path += &format!("?key={}", scene.key.secret);
            assert_eq!(send(http, envoy.addr(), call).await.unwrap().status, 200, "{http:?}");
        }
        for seen in scene.provider_saw(2).await {
            let mut names: Vec<&str> = seen.headers.keys().map(|name| name.as_str()).collect();
            names.sort_unstable();
            let expected =
                ["accept-encoding", "authorization", "content-length", "content-type", "host", "openai-project"];
            assert_eq!(names, expected);
            assert_eq!(seen.target, "/v1/chat/completions");
            let all = format!("{:?}", seen.headers);
            assert!(!all.contains("canary-of-a-client") && !all.contains("sk-sg-"), "{all}");
        }
    });
}

/// All that a client gets, and all that their service got for it.
#[derive(Debug, PartialEq)]
struct Passed {
    what: String,
    status: u16,
    headers: Vec<(String, String)>,
    body: Bytes,
    trailers: Vec<(String, String)>,
    seen: Vec<Seen>,
}

async fn pass(theirs: &Theirs, envoy: &Envoy, http: Http, call: Call) -> Passed {
    let what = format!("{http:?} {} {} {:.60}", call.method, call.path, format!("{:?}", call.headers));
    let reply = send(http, envoy.addr(), call).await.unwrap();
    let text = |headers: &hyper::HeaderMap| {
        let value = |name: &str, value: &hyper::header::HeaderValue| match name {
            // How long it took.
            "x-envoy-upstream-service-time" | "date" => String::new(),
            _ => String::from_utf8_lossy(value.as_bytes()).into_owned(),
        };
        headers.iter().map(|(n, v)| (n.to_string(), value(n.as_str(), v))).collect::<Vec<_>>()
    };
    let (status, headers) = (reply.status, text(&reply.headers));
    let (body, trailers) = reply.to_the_end().await.unwrap();
    let mut seen = theirs.app.take();
    if what.contains("/mirrored/") {
        // Two come, in any order.
        eventually("the copy comes", Duration::from_secs(5), || async {
            ensure!(theirs.app.seen() + seen.len() == 2);
            Ok(())
        })
        .await;
        seen.extend(theirs.app.take());
        seen.sort_by_key(|seen| seen.headers.get("host").map(|host| host.len()));
    }
    Passed { what, status, headers, body, trailers: text(&trailers), seen }
}

/// Requests that are not ours, of every kind.
fn calls_of_theirs(secret: &str) -> Vec<Call> {
    let large: Bytes = (0..2_u32 << 20).map(|i| (i * 31 % 251) as u8).collect::<Vec<_>>().into();
    let trailers = vec![("x-end".to_owned(), "1".to_owned())];
    let pieces = |size: usize| large.chunks(size).map(|c| large.slice_ref(c)).collect::<Vec<_>>();
    let with_trailers = Outgoing::Pieces { pieces: pieces(100_000), trailers };
    vec![
        Call::get("/"),
        Call::get("/theirs?key=sk-sg-a-b&next=/v1/models").header("cookie", "a=b").header("x-request-id", "theirs"),
        Call { method: "HEAD", ..Call::get("/theirs") },
        Call { method: "DELETE", ..Call::get("/v10/x") },
        Call::post("/v1x/chat/completions", "{}").bearer(secret),
        Call::post("/mirrored/x", "x").bearer(secret),
        Call::post("/old/thing", large.clone()).header("x-api-key", secret),
        Call::post("/theirs", "").body(with_trailers.clone()).header("te", "trailers"),
        Call::post("/h2/theirs", "").body(with_trailers).header("te", "trailers"),
        Call::post("/theirs", "").body(Outgoing::Pieces { pieces: pieces(1 << 20), trailers: Vec::new() }),
        Call::post("/theirs", "x").header("x-sluicegate-list", "their|models").header("x-sluicegate-key-id", "1"),
        Call::post("/theirs", "x").header("x-envoy-max-retries", "3").header("content-encoding", "gzip"),
        Call::get("/theirs").header("origin", "https://their.example"),
        Call { method: "OPTIONS", ..Call::get("/v1") }
            .header("host-is", "theirs")
            .header("origin", "https://their.example")
            .header("access-control-request-method", "POST"),
    ]
}

/// A WebSocket's handshake and what is said over it.
async fn web_socket(envoy: &Envoy) -> String {
    let mut socket = TcpStream::connect(envoy.addr()).await.unwrap();
    let request = "GET /theirs/socket HTTP/1.1\r\nhost: theirs\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    while !all.ends_with(b"\r\n\r\n") {
        all.push(socket.read_u8().await.unwrap());
    }
    for said in [&b"\x82\x03abc"[..], &[7; 100_000]] {
        socket.write_all(said).await.unwrap();
        let mut back = vec![0; said.len()];
        socket.read_exact(&mut back).await.unwrap();
        assert_eq!(back, said);
    }
    let head = String::from_utf8(all).unwrap();
    let lines = head.lines().filter(|line| !line.starts_with("date:") && !line.contains("service-time"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_not_ours_stays_as_it_was() {
    side_by_side(async {
        let stack = stack().await;
        let (theirs, scene) = (Theirs::new(stack.provider.addr()).await, stack.scene("attached-others").await);
        let all = async |envoy: &Envoy| {
            let mut all = Vec::new();
            for http in [Http::H1, Http::H2] {
                for call in calls_of_theirs(&scene.key.secret) {
                    all.push(pass(&theirs, envoy, http, call).await);
                }
            }
            (all, web_socket(envoy).await, theirs.app.take())
        };
        let envoy = theirs.envoy(None).await;
        let before = all(&envoy).await;
        drop(envoy);
        let envoy = theirs.envoy(Some(&Pieces::render(stack, SCOPE))).await;
        knows(&envoy, &scene).await;
        let counted = async || {
            let stats = envoy.page("/stats").await.unwrap();
            stats.lines().filter(|line| line.contains("sluicegate_") && line.contains("_total")).count()
        };
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let (known, counted_before) = (stack.ledger.of_key(scene.key.id).await.unwrap().len(), counted().await);
        let after = all(&envoy).await;
        for (before, after) in before.0.iter().zip(&after.0) {
            let expected = match &before.what {
                what if what.contains("OPTIONS") => 0,
                what if what.contains("/mirrored/") => 2,
                _ => 1,
            };
            assert_eq!(before.seen.len(), expected, "{}", before.what);
            assert_eq!(before, after);
        }
        assert_eq!((before.1, before.2), (after.1, after.2), "a WebSocket");
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        assert_eq!(counted().await, counted_before, "nothing of it is counted");
        assert_eq!(stack.ledger.of_key(scene.key.id).await.unwrap().len(), known, "or booked");
    });
}

#[test]
fn no_way_around_the_scope() {
    side_by_side(async {
        let (theirs, envoy, scene) = only_served("attached-around").await;
        for http in [Http::H1, Http::H2] {
            for path in [
                "//v1/chat/completions",
                "/theirs/../v1/chat/completions",
                "/theirs/%2e%2e/v1/chat/completions",
                "/%76%31/chat/completions",
                "/v1/../theirs",
            ] {
                let status =
                    send(http, envoy.addr(), scene.call(path, chat_body(json!({})).to_string())).await.unwrap().status;
                assert_eq!(status, 404, "{http:?} {path}: ours, and none of our paths");
            }
            let mut stranger = scene.chat_call(json!({})).header("x-sluicegate-list", "their|models");
            stranger.headers.retain(|(name, _)| name != "authorization");
            assert_eq!(send(http, envoy.addr(), stranger).await.unwrap().status, 401);
            let elsewhere = Call::post("/theirs", "x").header("x-sluicegate-list", "their|models");
            assert_eq!(send(http, envoy.addr(), elsewhere).await.unwrap().status, 200);
        }
        let seen = theirs.app.take();
        assert!(seen.len() == 2 && seen.iter().all(|seen| seen.target == "/theirs"), "{seen:?}");
        let all = stack().await.provider.requests();
        assert!(!all.iter().any(|r| r.header("openai-project") == Some(&scene.tag)), "none reached the provider");
    });
}

#[test]
fn a_scope_of_hosts() {
    side_by_side(async {
        let stack = stack().await;
        let theirs = Theirs::new(stack.provider.addr()).await;
        let pieces = Pieces::render(stack, &["--scope-host", "LLM.example.com", "--scope-host", "127.0.0.1"]);
        let envoy = theirs.envoy(Some(&pieces)).await;
        let scene = stack.scene("attached-hosts").await;
        knows(&envoy, &scene).await;
        for (host, ours) in [("llm.Example.com:8080", true), ("llm.example.com", true), ("theirs.example.com", false)] {
            let request = format!("GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
            let mut socket = TcpStream::connect(envoy.addr()).await.unwrap();
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut reply = String::new();
            socket.read_to_string(&mut reply).await.unwrap();
            assert_eq!(reply.starts_with("HTTP/1.1 401"), ours, "{host}: {reply}");
            // The whole URL in the request line counts for more than the header.
            let request = format!("GET http://{host}/v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
            let mut socket = TcpStream::connect(envoy.addr()).await.unwrap();
            socket.write_all(request.as_bytes()).await.unwrap();
            let mut reply = String::new();
            socket.read_to_string(&mut reply).await.unwrap();
            assert_eq!(reply.starts_with("HTTP/1.1 401"), ours, "{host}: {reply}");
        }
        assert_eq!(theirs.app.take().len(), 2);
        let ready = send(Http::H1, envoy.addr(), Call::get("/sluicegate/ready")).await.unwrap();
        assert_eq!((ready.status, ready.text().await.unwrap().as_str()), (200, r#"{"ready":true}"#));
    });
}

#[test]
fn the_rendering_is_a_configuration_of_its_own() {
    side_by_side(async {
        let (stack, folder) = (stack().await, tools::folder("attach-as-is"));
        let wasm = folder.join("filter.wasm");
        for tls in [&[][..], &["--ca", "ca.pem", "--control-plane", "https://localhost:18000"]] {
            std::fs::write(folder.join("ca.pem"), theirs_ca()).unwrap();
            let file = folder.join("attached.yaml");
            let mut command = Command::new(tools::built("sluicegate"));
            command.args(["attach", "--to", "static", "--mode", "full", "--cluster", "a=b", "--scope-host", "a"]);
            command.args(["--scope-path-prefix", "/v1"]).arg("--wasm").arg(&wasm).arg("--write-wasm").arg(&wasm);
            let out = command.arg("--output").arg(&file).args(tls).output().unwrap();
            assert!(out.status.success() && out.stdout.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
            let mut validate = Command::new(tools::envoy());
            validate.args(["--mode", "validate", "-c"]).arg(&file).current_dir(&folder);
            validate.env("SLUICEGATE_NODE_TOKEN", "t").env("SLUICEGATE_SEAL_KEY", "0");
            let out = validate.output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        }
        // Their Envoy and a managed one tell what they were told in the same form.
        let theirs = Theirs::new(stack.provider.addr()).await;
        let envoy = theirs.envoy(Some(&Pieces::render(stack, SCOPE))).await;
        let dump = async |envoy: &Envoy| envoy.page("/config_dump").await.unwrap().parse::<Value>().unwrap();
        let (managed, attached) = (pieces_in(&dump(&stack.envoy).await), pieces_in(&dump(&envoy).await));
        let names: Vec<&str> = managed.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["admitted", "sluicegate-adapter", "sluicegate-control-plane", "sluicegate-gate"]);
        assert_eq!(managed, attached);
    });
}

/// The command that a newcomer copies.
#[test]
fn the_pages_command_works() {
    let page = std::fs::read_to_string(tools::workspace().join("docs/attached.md")).unwrap();
    let from = page.find("sluicegate attach").unwrap();
    let command = page[from..].split("```").next().unwrap().replace("\\\n", " ");
    let folder = tools::folder("attach-page");
    let args = command.split_whitespace().skip(1);
    let out = Command::new(tools::built("sluicegate")).args(args).current_dir(&folder).output().unwrap();
    assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
    let pieces = Pieces::read(&std::fs::read_to_string(folder.join("pieces.yaml")).unwrap());
    assert_eq!(pieces.cluster["transport_socket"]["name"], "envoy.transport_sockets.tls");
    assert!(folder.join("filter.wasm").metadata().unwrap().len() > 100_000);
}

fn theirs_ca() -> String {
    scripted_provider::TestCa::new().unwrap().pem()
}

/// Both plugins, the cluster of the control plane and what the admitted route removes, as an Envoy dumps them, but for what
/// must differ.
fn pieces_in(dump: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    collect(dump, &mut found);
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found.dedup();
    found
}

fn collect(value: &Value, found: &mut Vec<(String, Value)>) {
    match value {
        Value::Object(fields) => {
            let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
            let mut piece = value.clone();
            if fields.contains_key("vm_config") {
                piece["configuration"]["value"] = Value::Null;
                piece["vm_config"]["code"] = Value::Null;
                found.push((name.to_owned(), piece));
            } else if name == "sluicegate-control-plane" && fields.contains_key("load_assignment") {
                piece["load_assignment"] = Value::Null;
                // Said of some of its places in a dump.
                piece.as_object_mut().unwrap().remove("@type");
                found.push((name.to_owned(), piece));
            } else if let Some(removed) = fields.get("request_headers_to_remove") {
                let matches = fields.get("match").cloned().unwrap_or_default();
                let timers = ["timeout", "idle_timeout", "max_stream_duration", "cluster_header"];
                let route = timers.map(|name| fields["route"].get(name).cloned().unwrap_or_default());
                found.push(("admitted".to_owned(), json!([removed, matches, route])));
            }
            fields.values().for_each(|value| collect(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        _ => {}
    }
}
