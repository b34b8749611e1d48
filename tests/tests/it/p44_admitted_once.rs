//! Admission happens exactly once, for every shape of request: where its end comes, over which protocol, how it is encoded.
//! `docs/admission.md` has the table; these are its rows.

use std::time::Duration;

use bytes::Bytes;
use scripted_provider::TestCa;
use serde_json::{Value, json};
use sluicegate_tests::client::send_tls;
use sluicegate_tests::control_plane::Options;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::stack::{CHAT, NodeSecrets, Replica};
use sluicegate_tests::{Call, Http, Outgoing, Reply, Scene, Stack, eventually, send, side_by_side, tools};

/// What a shape gets: a status and, where it is refused, a code.
type Expected = (u16, &'static str);
const SERVED: Expected = (200, "");

/// A way to send a request.
struct Way<'a> {
    name: &'static str,
    http: Http,
    envoy: std::net::SocketAddr,
    ca: Option<&'a str>,
}

impl Way<'_> {
    async fn send(&self, call: Call) -> anyhow::Result<Reply> {
        match self.ca {
            Some(ca) => send_tls(self.http, self.envoy, ca, call).await,
            None => send(self.http, self.envoy, call).await,
        }
    }
}

fn pieces(body: &str, size: usize) -> Vec<Bytes> {
    body.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect()
}

/// Every shape of a chat, and what it gets.
fn shapes(scene: &Scene<'_>) -> Vec<(&'static str, Call, Expected)> {
    let body = chat_body(json!({})).to_string();
    let chat = |outgoing| scene.call("/v1/chat/completions", "").body(outgoing);
    let with = |method, path: &str, body| Call { method, ..scene.call(path, "").body(body) };
    let trailers = vec![("x-checksum".to_owned(), "1".to_owned())];
    let whole = |text: &str| Outgoing::Whole(Bytes::copy_from_slice(text.as_bytes()));
    let large = chat_body(json!({"messages": [{"role": "user", "content": "x".repeat(2 << 20)}]})).to_string();
    let model_last = format!(
        "{{\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}],\"model\":\"{CHAT}\"}}",
        "x".repeat(2 << 20)
    );
    vec![
        ("its end with the body's length", chat(whole(&body)), SERVED),
        ("its end in a piece", chat(Outgoing::Pieces { pieces: pieces(&body, 7), trailers: vec![] }), SERVED),
        (
            "its end in trailers",
            chat(Outgoing::Pieces { pieces: pieces(&body, 7), trailers: trailers.clone() }),
            SERVED,
        ),
        (
            "2 MB, its end in trailers",
            chat(Outgoing::Pieces { pieces: pieces(&large, 65_536), trailers: trailers.clone() }),
            SERVED,
        ),
        ("the model behind 2 MB", chat(whole(&model_last)), SERVED),
        ("its end with the headers", chat(Outgoing::Nothing), (400, "invalid_json")),
        ("nothing but trailers", chat(Outgoing::Pieces { pieces: vec![], trailers }), (400, "invalid_json")),
        ("an empty body with a length", chat(whole("")), (400, "invalid_json")),
        ("half a document", chat(whole(&body[..body.len() / 2])), (400, "invalid_json")),
        ("GET of the models", with("GET", "/v1/models", Outgoing::Nothing), SERVED),
        ("GET of the models with a body", with("GET", "/v1/models", whole(&body)), SERVED),
        ("GET of a model", with("GET", &format!("/v1/models/{CHAT}"), Outgoing::Nothing), SERVED),
        ("GET of a chat", with("GET", "/v1/chat/completions", whole(&body)), (405, "method_not_allowed")),
        ("PUT of a chat", with("PUT", "/v1/chat/completions", whole(&body)), (405, "method_not_allowed")),
        ("DELETE of the models", with("DELETE", "/v1/models", Outgoing::Nothing), (405, "method_not_allowed")),
        ("another path", with("POST", "/v1/files", whole(&body)), (404, "unknown_route")),
        (
            "a coding of ours that it is not",
            chat(whole(&body)).header("content-encoding", "gzip"),
            (400, "broken_encoding"),
        ),
        ("a coding of nobody's", chat(whole(&body)).header("content-encoding", "br"), (415, "unsupported_encoding")),
        ("two models", chat(whole(r#"{"model":"gpt-scripted","mod\u0065l":"alias"}"#)), (400, "duplicate_field")),
        (
            "a model inside of a message",
            chat(whole(r#"{"messages":[{"model":"gpt-scripted"}]}"#)),
            (400, "invalid_field"),
        ),
    ]
}

/// Sends every shape in a scene of its own and checks the answer, the provider and the ledger.
async fn check(stack: &Stack, way: Way<'_>) {
    let names: Vec<_> = shapes(&stack.scene("p44").await).into_iter().map(|(name, ..)| name).collect();
    for (i, name) in names.into_iter().enumerate() {
        let scene = stack.scene("p44").await;
        let (_, call, (status, code)) = shapes(&scene).remove(i);
        let metered = call.path == "/v1/chat/completions";
        let what = format!("{}: {name}", way.name);
        // The Envoy of another control plane hears of the key in its own time.
        eventually("the key is known", Duration::from_secs(5), || async {
            let status = way.send(Call::get("/v1/models").bearer(&scene.key.secret)).await?.status;
            anyhow::ensure!(status == 200, "{status}");
            Ok(())
        })
        .await;
        let reply = way.send(call).await.unwrap_or_else(|e| panic!("{what}: {e:#}"));
        let got = reply.status;
        let body: Value = serde_json::from_slice(&reply.bytes().await.unwrap()).unwrap_or_default();
        assert_eq!((got, body["error"]["code"].as_str().unwrap_or_default()), (status, code), "{what}: {body}");
        let served = usize::from(metered && status == 200);
        if served == 1 {
            scene.provider_saw(1).await;
        }
        let rows = stack.ledger.rows(scene.key.id, usize::from(metered || status != 200)).await;
        assert_eq!(rows.iter().filter(|row| row.refusal.is_none()).count(), served, "{what}: {rows:?}");
        let seen = stack.provider.requests();
        assert_eq!(seen.iter().filter(|r| r.header("openai-project") == Some(&scene.tag)).count(), served, "{what}");
    }
}

#[test]
fn in_plain_text() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for (name, http) in [("HTTP/1.1", Http::H1), ("h2c", Http::H2)] {
            check(stack, Way { name, http, envoy: stack.envoy.addr(), ca: None }).await;
        }
    });
}

#[test]
fn over_tls() {
    side_by_side(async {
        let stack = Stack::start().await;
        let ca = TestCa::new().unwrap();
        let folder = tools::folder("client-tls");
        let (certificate, key) = (folder.join("tls.crt"), folder.join("tls.key"));
        let renew = || {
            let (chain, private) = ca.identity(&["localhost"]).unwrap();
            for (path, text) in [(&certificate, chain), (&key, private)] {
                let next = path.with_extension("next");
                std::fs::write(&next, text).unwrap();
                std::fs::rename(next, path).unwrap();
            }
        };
        renew();
        let options = Options { client_tls: Some((certificate.clone(), key.clone())), ..Options::default() };
        let Replica { envoy, control: _control, interposer: _between } =
            stack.replica_with(NodeSecrets::default(), options).await;
        let pem = ca.pem();
        let way = |name, http| Way { name, http, envoy: envoy.addr(), ca: Some(&pem) };
        let ready = way("HTTP/1.1 over TLS", Http::H1);
        eventually("it is ready", Duration::from_secs(30), || async {
            let status = ready.send(Call::get("/sluicegate/ready")).await?.status;
            anyhow::ensure!(status == 200, "{status}");
            let scene = stack.scene("p44-warm").await;
            let status = ready.send(scene.chat_call(json!({}))).await?.status;
            anyhow::ensure!(status == 200, "{status}");
            Ok(())
        })
        .await;
        check(&stack, ready).await;
        check(&stack, way("HTTP/2 over TLS", Http::H2)).await;
        // A renewed certificate is picked up.
        let before = envoy.page("/certs").await.unwrap();
        renew();
        eventually("the certificate is another one", Duration::from_secs(10), || async {
            let now = envoy.page("/certs").await?;
            anyhow::ensure!(now != before, "it is the same");
            Ok(())
        })
        .await;
        assert_eq!(way("", Http::H2).send(Call::get("/sluicegate/ready")).await.unwrap().status, 200);
    });
}
