//! How fast bodies are scanned and streams metered: `cargo run --release -p sluicegate-core --example speed`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use sluicegate_core::dialect::openai::stream::Stream;
use sluicegate_core::dialect::openai::{Operation, reply::Reply, request};

const WINDOW: usize = 64 * 1024;

fn main() {
    let code = "fn main() {\\n    println!(\\\"hello, wörld\\\");\\n}\\n\\n";
    let prose = "The function above prints a greeting, and returns nothing. It is the smallest program of all that do \
                 something one can see; most people who learn a language write it first, and few write it again.\\n";
    for (name, text, size) in [
        ("chat of prose, 200 KB", prose, 200_000),
        ("chat of prose, 2 MB", prose, 2_000_000),
        ("chat of code, 200 KB", code, 200_000),
        ("chat of code, 2 MB", code, 2_000_000),
    ] {
        let body = chat(text, size);
        report(name, body.len(), fastest(|| scan(Operation::ChatCompletions, &body)));
    }
    let body = tokens(200_000);
    report("embeddings of token arrays, 200 KB", body.len(), fastest(|| scan(Operation::Embeddings, &body)));
    let body = vectors(200_000);
    let reply = || {
        let mut reply = Reply::new(Operation::Embeddings);
        body.chunks(WINDOW).for_each(|chunk| reply.push(chunk));
        black_box(reply.finish(0));
    };
    report("reply of float vectors, 200 KB", body.len(), fastest(reply));
    for (name, asked) in [("client asked for usage", true), ("usage cut out", false)] {
        let events = stream(1_000);
        let time = fastest(|| {
            let mut stream = Stream::new(asked);
            for event in &events {
                black_box(stream.push(event));
            }
            black_box(stream.finish(0));
        });
        println!("stream, {name}: {} ns per event", time.as_nanos() / 1_000);
    }
}

fn scan(operation: Operation, body: &[u8]) {
    let mut scanner = request::scanner(operation);
    for window in body.chunks(WINDOW) {
        black_box(scanner.push(window).is_ok());
    }
    assert!(scanner.finish().is_ok(), "the body is valid");
}

/// Messages of 2 KB, the model last.
fn chat(text: &str, size: usize) -> Vec<u8> {
    let text = text.repeat(2_000 / text.len());
    let mut body = br#"{"messages":["#.to_vec();
    while body.len() < size {
        body.extend_from_slice(br#"{"role":"user","content":[{"type":"text","text":""#);
        body.extend_from_slice(text.as_bytes());
        body.extend_from_slice(br#""}]},"#);
    }
    body.extend_from_slice(br#"{"role":"user","content":"go"}],"stream":true,"model":"gpt-5"}"#);
    body
}

fn tokens(size: usize) -> Vec<u8> {
    let mut body = br#"{"input":[[0"#.to_vec();
    let mut n = 7_u32;
    while body.len() < size {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        body.extend_from_slice(format!(", {}", n >> 15).as_bytes());
    }
    body.extend_from_slice(br#"]],"model":"text-embedding-3-small"}"#);
    body
}

fn vectors(size: usize) -> Vec<u8> {
    let mut body = br#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5"#.to_vec();
    let mut n = 7_u32;
    while body.len() < size {
        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        body.extend_from_slice(format!(",-0.0{n:010}").as_bytes());
    }
    body.extend_from_slice(br#"]}],"usage":{"prompt_tokens":8,"total_tokens":8}}"#);
    body
}

fn stream(events: usize) -> Vec<Vec<u8>> {
    let event = r#"data: {"id":"chatcmpl-BxkQ3vKq","object":"chat.completion.chunk","created":1757000000,"model":"gpt-5-2025-08-07","service_tier":"default","system_fingerprint":null,"choices":[{"index":0,"delta":{"content":" greeting"},"finish_reason":null}],"usage":null,"obfuscation":"aB3"}"#;
    vec![format!("{event}\n\n").into_bytes(); events]
}

fn fastest(mut work: impl FnMut()) -> Duration {
    (0..200)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .min()
        .unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "for reading")]
fn report(name: &str, bytes: usize, time: Duration) {
    println!("{name}: {:.0} us, {:.0} MB/s", time.as_secs_f64() * 1e6, bytes as f64 / time.as_secs_f64() / 1e6);
}
