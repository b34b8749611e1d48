//! Every shape a request can have: where its stream ends, over which protocol, with and without a body, under which method.
//! Each is admitted once or answered, whatever the Envoy.

use bytes::Bytes;
use serde_json::json;
use sluicegate_tests::scene::chat_body;
use sluicegate_tests::stack::CHAT;
use sluicegate_tests::{Call, Http, Outgoing, Scene, Stack};

const PATH: &str = "/v1/chat/completions";
/// How clients reach the listener. What holds over one of them holds over all.
const TRANSPORTS: [Http; 2] = [Http::H1, Http::H2];

/// The same body, with its end in headers (of a request with none), in the body, or in trailers.
fn ends(body: &Bytes) -> [(&'static str, Outgoing); 5] {
    let trailers = vec![("x-checksum".to_owned(), "1".to_owned())];
    let halves = vec![body.slice(..body.len() / 2), body.slice(body.len() / 2..)];
    [
        ("a length", Outgoing::Whole(body.clone())),
        ("one piece", Outgoing::Pieces { pieces: vec![body.clone()], trailers: Vec::new() }),
        ("two pieces", Outgoing::Pieces { pieces: halves.clone(), trailers: Vec::new() }),
        ("an empty last piece", Outgoing::Pieces { pieces: vec![body.clone(), Bytes::new()], trailers: Vec::new() }),
        ("trailers", Outgoing::Pieces { pieces: halves, trailers }),
    ]
}

fn empty() -> [(&'static str, Outgoing); 4] {
    let trailers = vec![("x-checksum".to_owned(), "1".to_owned())];
    [
        ("nothing", Outgoing::Nothing),
        ("an empty body", Outgoing::Whole(Bytes::new())),
        ("no piece", Outgoing::Pieces { pieces: Vec::new(), trailers: Vec::new() }),
        ("only trailers", Outgoing::Pieces { pieces: Vec::new(), trailers }),
    ]
}

/// Sends them all, and counts what the provider and the ledger have of them.
pub(crate) async fn each_is_admitted_once_or_answered(stack: &Stack) {
    let scene = stack.scene("shapes").await;
    let body = Bytes::from(chat_body(json!({"model": CHAT})).to_string());
    let encoded = Bytes::from(zstd::stream::encode_all(&body[..], 3).unwrap());
    let (mut admitted, mut booked) = (0, 0);
    for http in TRANSPORTS {
        let mut expect = async |what: &str, call: Call, wanted: u16| {
            let method = call.method;
            let status =
                scene.send(http, call).await.unwrap_or_else(|e| panic!("{http:?} {method} {what}: {e:#}")).status;
            assert_eq!(status, wanted, "{http:?} {method} {what}");
            admitted += usize::from(status == 200);
            booked += 1;
        };
        for (what, outgoing) in ends(&body) {
            expect(what, scene.call(PATH, "").body(outgoing.clone()), 200).await;
            for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
                let call = Call { method, ..scene.call(PATH, "") }.body(outgoing.clone());
                expect(what, call, 405).await;
            }
        }
        for (what, outgoing) in ends(&encoded) {
            let call = scene.call(PATH, "").header("content-encoding", "zstd").body(outgoing);
            expect(what, call, 200).await;
        }
        for (what, outgoing) in empty() {
            expect(what, scene.call(PATH, "").body(outgoing.clone()), 400).await;
            for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
                expect(what, Call { method, ..scene.call(PATH, "") }.body(outgoing.clone()), 405).await;
            }
        }
        forged(&scene, http, &body).await;
    }
    let seen = scene.provider_saw(admitted).await;
    assert!(seen.iter().all(|request| request.complete && request.body == body), "each arrives as it was sent");
    let rows = stack.ledger.rows(scene.key.id, booked).await;
    assert_eq!(rows.iter().filter(|row| row.ended == "complete").count(), admitted);
}

/// A list of the client's own choosing leads nowhere, in whichever frame its stream ends.
async fn forged(scene: &Scene<'_>, http: Http, body: &Bytes) {
    for (what, outgoing) in ends(body).into_iter().chain(empty()) {
        let mut call = scene.call(PATH, "").header("x-sluicegate-list", "sluicegate-position-1-1").body(outgoing);
        call.headers.retain(|(name, _)| name != "authorization");
        assert_eq!(scene.send(http, call).await.unwrap().status, 401, "{http:?} {what}");
    }
}
