//! Bodies from 0.2 to 32 MiB work, whatever comes before `model`; beyond, the client gets a 413 in its dialect.

use bytes::Bytes;
use sluicegate_tests::stack::{CHAT, Stack};
use sluicegate_tests::{Http, Outgoing, side_by_side};

const MIB: usize = 1 << 20;

/// A body of exactly `size` bytes with the model at its end.
fn body(size: usize) -> Bytes {
    let (front, back) = (r#"{"messages":[{"role":"user","content":""#, format!(r#""}}],"model":"{CHAT}"}}"#));
    let filling = "a".repeat(size - front.len() - back.len());
    Bytes::from([front, &filling, &back].concat())
}

#[test]
fn up_to_the_limit() {
    side_by_side(async {
        let stack = Stack::shared().await;
        for http in [Http::H1, Http::H2] {
            for size in [MIB / 5, MIB, 2 * MIB, 8 * MIB, 32 * MIB] {
                let scene = stack.scene("p32").await;
                let sent = body(size);
                let reply = scene.send(http, scene.call("/v1/chat/completions", sent.clone())).await.unwrap();
                assert_eq!(reply.status, 200, "{http:?} {size}");
                assert!(scene.provider_saw(1).await[0].body == sent, "{http:?} {size}: the same bytes");
                stack.ledger.only(scene.key.id).await;
            }
        }
        let scene = stack.scene("p32-chunked").await;
        let call = scene.call("/v1/chat/completions", body(5 * MIB)).in_pieces(10_000);
        assert_eq!(scene.send(Http::H1, call).await.unwrap().status, 200);
    });
}

#[test]
fn beyond_it() {
    side_by_side(async {
        let stack = Stack::shared().await;
        let scene = stack.scene("p32-beyond").await;
        let call = || scene.call("/v1/chat/completions", Bytes::new());
        // Refused by what it announces, before it is sent.
        let announced = Outgoing::Half { part: "{".into(), announced: 33 * MIB as u64 };
        for http in [Http::H1, Http::H2] {
            let reply = scene.send(http, call().body(announced.clone())).await.unwrap();
            assert_eq!(reply.status, 413);
            assert_eq!(reply.json().await.unwrap()["error"]["code"], "request_too_large");
        }
        // Refused when it turns out.
        let whole = body(33 * MIB);
        let pieces = whole.chunks(64 << 10).map(|c| whole.slice_ref(c)).collect();
        let endless = Outgoing::Pieces { pieces, trailers: Vec::new() };
        let reply = scene.send(Http::H2, call().body(endless)).await.unwrap();
        assert_eq!(reply.status, 413);
        assert_eq!(reply.json().await.unwrap()["error"]["code"], "request_too_large");
        assert_eq!(stack.provider.requests().iter().filter(|r| r.body.len() > 32 * MIB).count(), 0);
    });
}
