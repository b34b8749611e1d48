//! A stream's memory does not grow with its length, nor the VM's with the number of streams that were.

use scripted_provider::Chat;
use serde_json::json;

use sluicegate_tests::{Http, Scene, Stack, alone};

const MIB: u64 = 1 << 20;

/// Reads a stream to its end; how many bytes it had.
async fn stream(scene: &Scene<'_>, http: Http) -> u64 {
    let mut reply = scene.send(http, scene.chat_call(json!({"stream": true}))).await.unwrap();
    let mut bytes = 0;
    while let Some(chunk) = reply.chunk().await.unwrap() {
        bytes += chunk.len() as u64;
    }
    bytes
}

/// `n` times 50 streams at once.
async fn rounds(scene: &Scene<'_>, n: u32) {
    for _ in 0..n {
        futures::future::join_all((0..50).map(|_| stream(scene, Http::H1))).await;
    }
}

#[test]
fn memory_stays_flat() {
    alone(async {
        let stack = Stack::start().await;
        let scene = stack.scene("p19").await;
        let delta = "x".repeat(4_000);
        scene.answer(Chat::repeat(&delta, 2_000));
        // Buffers and the heap's pages are there after the first.
        stream(&scene, Http::H1).await;
        stream(&scene, Http::H2).await;
        let before = stack.envoy.process().resident_bytes();
        let mut bytes = 0;
        for _ in 0..6 {
            bytes += stream(&scene, Http::H1).await;
            bytes += stream(&scene, Http::H2).await;
        }
        assert!(bytes > 90 * MIB, "{bytes} bytes were streamed");
        let long = stack.envoy.process().resident_bytes().saturating_sub(before);
        println!("{} MiB streamed: resident memory grew by {} KiB", bytes / MIB, long / 1024);
        assert!(long < 16 * MIB, "grew by {long} bytes over long streams");

        scene.answer(Chat::repeat("word ", 20));
        rounds(&scene, 4).await;
        let before = stack.envoy.process().resident_bytes();
        rounds(&scene, 40).await;
        let many = stack.envoy.process().resident_bytes().saturating_sub(before);
        println!("2,000 short streams: resident memory grew by {} KiB", many / 1024);
        assert!(many < 8 * MIB, "grew by {many} bytes over many streams");
    });
}
