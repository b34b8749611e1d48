use std::borrow::Cow;

use proptest::prelude::*;

use super::*;

const HEAD: &str = r#"{"id":"c-1","object":"chat.completion.chunk","created":1757000000,"model":"gpt-5","#;

/// A chunk with one choice, and something after it.
fn chunk(delta: &str, rest: &str) -> String {
    format!(r#"data: {HEAD}"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]{rest}}}"#) + "\n\n"
}

fn stop(rest: &str) -> String {
    format!(r#"data: {HEAD}"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]{rest}}}"#) + "\n\n"
}

fn usage_chunk(choices: &str) -> String {
    format!(
        r#"data: {HEAD}{choices}"usage":{{"prompt_tokens":19,"completion_tokens":7,"total_tokens":26,"prompt_tokens_details":{{"cached_tokens":16}},"completion_tokens_details":{{"reasoning_tokens":2}}}}}}"#
    ) + "\n\n"
}

const USAGE: Usage = Usage {
    input: 3,
    cache_read: 16,
    cache_write_5m: 0,
    cache_write_1h: 0,
    output: 5,
    reasoning: 2,
    audio_in: 0,
    audio_out: 0,
    images: 0,
};
const DONE: &str = "data: [DONE]\n\n";

#[derive(Debug, PartialEq)]
struct Run {
    sent: String,
    end: StreamEnd,
    text: u64,
    reasoning: u64,
}

fn run_in<'a>(asked: bool, chunks: impl IntoIterator<Item = &'a [u8]>) -> Run {
    let mut stream = Stream::new(asked);
    let mut sent = Vec::new();
    for chunk in chunks {
        match stream.push(chunk) {
            Forward::Unchanged => sent.extend_from_slice(chunk),
            Forward::Replace(bytes) => sent.extend_from_slice(&bytes),
        }
    }
    let (text, reasoning) = (stream.meter.text, stream.meter.reasoning);
    let end = stream.finish(1000);
    sent.extend_from_slice(&end.rest);
    Run {
        sent: String::from_utf8_lossy(&sent).into_owned(),
        end: StreamEnd { rest: Vec::new(), ..end },
        text,
        reasoning,
    }
}

fn run(asked: bool, stream: &str) -> Run {
    run_in(asked, [stream.as_bytes()])
}

/// What OpenAI sends when the gateway has asked for usage and the client has not.
fn openai(null: &str) -> String {
    [
        &chunk(r#"{"role":"assistant","content":"","refusal":null}"#, null),
        &chunk(r#"{"content":"Grü"}"#, null),
        &chunk(r#"{"content":"ße\n😀"}"#, &format!(r#"{null},"obfuscation":"x""#)),
        &stop(null),
    ]
    .map(String::as_str)
    .concat()
}

#[test]
fn what_the_gateway_asked_for_does_not_show() {
    let upstream = openai(r#","usage":null"#) + &usage_chunk(r#""choices":[],"#) + DONE;
    let Run { sent, end, text, reasoning } = run(false, &upstream);
    assert_eq!(sent, openai("") + DONE);
    assert_eq!((end.usage, end.source, end.ending), (USAGE, Source::Reported, Ending::Complete));
    assert_eq!((text, reasoning, end.at_boundary), ("Grüße\n😀".len() as u64, 0, true));
}

#[test]
fn who_asked_gets_every_byte() {
    let upstream = openai(r#", "usage": null"#) + &usage_chunk(r#""choices":[],"#) + DONE;
    let Run { sent, end, .. } = run(true, &upstream);
    assert_eq!(sent, upstream);
    assert_eq!((end.usage, end.source, end.ending), (USAGE, Source::Reported, Ending::Complete));
}

#[test]
fn usage_only_chunks_come_in_several_shapes() {
    for choices in [r#""choices":[],"#, r#""choices": null ,"#, ""] {
        let Run { sent, end, .. } = run(false, &(openai("") + &usage_chunk(choices)));
        assert_eq!(sent, openai(""), "{choices}");
        // Without [DONE]: a finish reason and usage are an end too.
        assert_eq!((end.usage, end.ending), (USAGE, Ending::Complete));
    }
    // An empty chunk that carries something else is no usage chunk.
    let filter = format!(r#"data: {{"choices":[],"prompt_filter_results":[{{}}],"usage":null}}{}"#, "\n\n");
    assert_eq!(run(false, &filter).sent, filter.replace(r#","usage":null"#, ""));
}

#[test]
fn usage_on_the_last_content_chunk_is_metered_and_cut_out() {
    let last = usage_chunk(r#""choices":[{"index":0,"delta":{"content":"!"},"finish_reason":"stop"}],"#);
    let Run { sent, end, .. } = run(false, &(openai("") + &last + DONE));
    let cut = last.find(",\"usage\"").unwrap();
    assert_eq!(sent, openai("") + &last[..cut] + "}\n\n" + DONE);
    assert_eq!((end.usage, end.source), (USAGE, Source::Reported));
}

#[test]
fn cumulative_usage_on_every_chunk_is_merged() {
    let usage = |tokens: u32| format!(r#","usage":{{"prompt_tokens":9,"completion_tokens":{tokens}}}"#);
    let upstream =
        chunk(r#"{"content":"a"}"#, &usage(1)) + &chunk(r#"{"content":"b"}"#, &usage(2)) + &stop(&usage(3)) + DONE;
    let Run { end, .. } = run(false, &upstream);
    assert_eq!((end.usage, end.source), (Usage { input: 9, output: 3, ..Usage::default() }, Source::Reported));
    let parts = chunk("{}", r#","usage":{"prompt_tokens":9}"#)
        + &chunk(r#"{"content":"b"}"#, r#","usage":{"completion_tokens":4}"#)
        + DONE;
    let Run { end, .. } = run(false, &parts);
    assert_eq!((end.usage, end.source), (Usage { input: 9, output: 4, ..Usage::default() }, Source::Reported));
}

#[test]
fn every_kind_of_output_counts_and_nothing_else() {
    for (delta, text, reasoning) in [
        (r#"{"content":"12345"}"#, 5, 0),
        (r#"{"content":null,"refusal":"123"}"#, 3, 0),
        (r#"{"reasoning_content":"1234"}"#, 0, 4),
        (r#"{"reasoning":"1234","reasoning_content":"1234","content":"5"}"#, 1, 4),
        (r#"{"function_call":{"name":"f","arguments":"{}"}}"#, 3, 0),
        (
            r#"{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"get","arguments":""}}]}"#,
            3,
            0,
        ),
        (
            r#"{"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}},{"index":1,"function":{"arguments":"{\"b"}}]}"#,
            7,
            0,
        ),
        (
            r#"{"tool_calls":[{"index":0,"custom":{"name":"sh","input":"ls"}}],"audio":{"id":"a","transcript":"hi"}}"#,
            6,
            0,
        ),
        (
            r#"{"content":[{"type":"text","text":"123"},{"type":"thinking","thinking":[{"type":"text","text":"45"}]}]}"#,
            5,
            0,
        ),
        (r#"{"role":"assistant","content":""}"#, 0, 0),
        ("{}", 0, 0),
        ("null", 0, 0),
    ] {
        let run = run(false, &chunk(delta, ""));
        assert_eq!((run.text, run.reasoning), (text, reasoning), "{delta}");
    }
    let two = format!(
        r#"data: {HEAD}"choices":[{{"index":0,"delta":{{"content":"ab"}}}},{{"index":1,"delta":{{"content":"c"}}}}]}}"#
    );
    assert_eq!(run(false, &(two + "\n\n")).text, 3);
}

#[test]
fn the_first_token_is_the_first_output() {
    let mut stream = Stream::new(false);
    for (event, seen) in [
        (": keepalive\n\n", false),
        (&chunk(r#"{"role":"assistant","content":""}"#, ""), false),
        (&chunk(r#"{"reasoning_content":"hm"}"#, ""), true),
    ] {
        assert_eq!(stream.push(event.as_bytes()), Forward::Unchanged);
        assert_eq!(stream.first_token_seen(), seen, "{event}");
    }
}

#[test]
fn a_cut_stream_is_estimated() {
    let begun = openai(r#","usage":null"#);
    let cut = begun.len() - 30;
    let Run { sent, end, text, .. } = run(false, &begun[..cut]);
    let whole = openai("");
    // Half an event is not forwarded, so that an error event can follow.
    assert_eq!(sent, whole[..whole.rfind("data:").unwrap()]);
    assert_eq!((end.ending, end.source, end.at_boundary), (Ending::Cut, Source::Estimated, true));
    assert_eq!(end.usage, Usage { input: 1000, output: text.div_ceil(4), ..Usage::default() });
    let Run { sent, end, .. } = run(true, &begun[..cut]);
    assert_eq!((sent.as_str(), end.at_boundary), (&begun[..cut], false));
    // A finish reason alone is no end: usage and [DONE] were to follow.
    assert_eq!(run(false, &begun).end.ending, Ending::Cut);
    assert_eq!(run(false, &(begun + DONE)).end.ending, Ending::Complete);
    // Before the first token: the provider may have read the input.
    let Run { end, .. } = run(false, "");
    assert_eq!((end.usage, end.source), (Usage { input: 1000, ..Usage::default() }, Source::Estimated));
}

#[test]
fn an_error_event_can_follow_whatever_was_sent() {
    let event = "data: {\"error\":{}}\n\n";
    for (asked, upstream, expected) in [
        (false, chunk(r#"{"content":"a"}"#, ""), event.to_owned()),
        (false, "data: {\"cho".to_owned(), event.to_owned()),
        (true, "data: {\"cho".to_owned(), "\n\n".to_owned() + event),
        (false, "data: {\"choices\":[]}".to_owned(), "\n\n".to_owned() + event),
    ] {
        let Run { end, .. } = run(asked, &upstream);
        assert_eq!(end.error_event(br#"{"error":{}}"#), expected.as_bytes(), "{upstream}");
    }
}

#[test]
fn usage_that_text_came_after_is_not_the_whole() {
    let early =
        chunk("{}", r#","usage":{"prompt_tokens":9,"completion_tokens":0}"#) + &chunk(r#"{"content":"12345678"}"#, "");
    let Run { end, .. } = run(false, &early);
    assert_eq!((end.usage, end.source), (Usage { input: 9, output: 2, ..Usage::default() }, Source::Estimated));
    // But it is a floor.
    let Run { end, .. } = run(false, &early.replace(":0}", ":50}"));
    assert_eq!((end.usage, end.source), (Usage { input: 9, output: 50, ..Usage::default() }, Source::Estimated));
}

#[test]
fn an_error_event_passes_and_its_text_is_no_output() {
    let errors = [
        r#"data: {"error":{"message":"The server had an error","type":"server_error"}}"#,
        "event: error\ndata: {\"message\":\"x\",\"choices\":[{\"delta\":{\"content\":\"x\"}}]}",
        r#"data: {"error":{"message":"x"},"choices":[{"delta":{"content":"12345678"},"finish_reason":"error"}],"usage":null}"#,
    ];
    for error in errors {
        let error = format!("{error}\n\n");
        let Run { sent, end, text, .. } = run(false, &(chunk(r#"{"content":"1234"}"#, "") + &error + DONE));
        assert_eq!(sent, chunk(r#"{"content":"1234"}"#, "") + &error + DONE);
        assert_eq!((text, end.ending, end.source), (4, Ending::Failed, Source::Estimated));
        let Run { end, .. } = run(false, &error);
        assert_eq!((end.usage, end.source, end.ending), (Usage::default(), Source::None, Ending::Failed));
    }
    assert_eq!(run(false, &(openai(r#","error":null"#) + DONE)).end.ending, Ending::Complete);
}

#[test]
fn what_cannot_be_read_passes_as_it_came() {
    let odd = "data: [[],{\"prompt_tokens\":1}]\n\ndata: {\"choices\":[],\"usage\":{}\n\ndata: 7\n\nretry: 5\n\n\n\ndata: {\"usage\":1,\"usage\":2}\n\n: ping\n\n";
    assert_eq!(run(false, odd).sent, odd);
}

#[test]
fn usage_of_another_type_is_no_usage() {
    let Run { sent, end, text, .. } = run(false, &chunk(r#"{"content":"1234"}"#, r#","usage":[7]"#));
    assert_eq!((sent, text), (chunk(r#"{"content":"1234"}"#, ""), 4));
    assert_eq!(end.source, Source::Estimated);
}

#[test]
fn a_payload_over_several_lines_is_cut_where_it_stands() {
    let event = "id: 1\r\ndata: {\"choices\":[{}],\r\ndata:  \"usage\":\r\ndata: null,\"x\":1}\r\n\r\n";
    assert_eq!(run(false, event).sent, "id: 1\r\ndata: {\"choices\":[{}],\"x\":1}\r\n\r\n");
}

#[test]
fn unchanged_chunks_are_not_copied() {
    let (a, b) = (chunk(r#"{"content":"a"}"#, ""), chunk(r#"{"content":"b"}"#, ""));
    let mut stream = Stream::new(false);
    let both = a.clone() + &b;
    assert_eq!(stream.push(both.as_bytes()), Forward::Unchanged);
    let (half, rest) = b.split_at(20);
    let with_half = a.clone() + half;
    assert!(matches!(stream.push(with_half.as_bytes()), Forward::Replace(Cow::Borrowed(sent)) if sent == a.as_bytes()));
    assert_eq!(stream.push(rest.as_bytes()), Forward::Replace(Cow::Owned(b.clone().into_bytes())));
}

/// One of everything, with the line end to be chosen.
fn everything(end: &str) -> String {
    let call = r#"{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"ü\":1}"}},{"index":1,"id":"b","function":{"name":"g","arguments":""}}]}"#;
    let stream = [
        ": open\n\n",
        &chunk(r#"{"role":"assistant","content":""}"#, r#","usage":null"#),
        &chunk(r#"{"reasoning_content":"hmm 😀"}"#, r#" , "usage" : null"#),
        &chunk(call, r#","usage":null,"x":1"#),
        "event: message\ndata: {\"choices\":[{\"delta\":{\"content\":\"ab\"}}],\ndata: \"usage\":null}\n\n",
        &stop(r#","usage":null"#),
        &usage_chunk(r#""choices":[],"#),
        "data: [DONE]\n\n",
    ];
    stream.concat().replace('\n', end)
}

#[test]
fn all_line_ends_give_the_same() {
    let lf = run(false, &everything("\n"));
    for end in ["\r\n", "\r"] {
        let other = run(false, &everything(end));
        assert_eq!((other.sent.replace(end, "\n"), &other.end), (lf.sent.clone(), &lf.end));
    }
    assert!(!lf.sent.contains("usage") && lf.sent.contains("event: message"));
}

#[test]
fn any_split_in_two_gives_the_same() {
    for (end, asked) in [("\n", false), ("\r\n", false), ("\r", false), ("\r\n", true)] {
        for tail in [0, 1, 3] {
            let stream = everything(end);
            let stream = &stream[..stream.len() - tail];
            let whole = run(asked, stream);
            for at in 0..stream.len() {
                let (a, b) = stream.as_bytes().split_at(at);
                assert_eq!(run_in(asked, [a, b]), whole, "{end:?} {asked} {tail} {at}");
            }
            assert_eq!(run_in(asked, stream.as_bytes().chunks(1)), whole);
        }
    }
}

/// Pieces of events, well-formed or not.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
    let part = prop::sample::select(
        &[
            "data: ",
            "data:{",
            "{\"choices\":",
            "[{\"delta\":{\"content\":\"é\"}}]",
            "[]",
            ",\"usage\":",
            "null",
            "{}",
            "}",
            "{\"prompt_tokens\":1}",
            "\n",
            "\r",
            "\r\n",
            "\n\n",
            "data: [DONE]",
            "\"error\":1",
            ",",
            "event: error",
            ": x",
            "data: {\"choices\":[],\"usage\":{\"total_tokens\":1}}\r\n\r\n",
            "data: {\"choices\":[{}],\"usage\":null}\r\r",
        ][..],
    );
    let bytes = prop::collection::vec(any::<u8>(), 0..3);
    let part = prop_oneof![9 => part.prop_map(|part| part.as_bytes().to_vec()), 1 => bytes];
    prop::collection::vec(part, 0..25).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn any_split_of_anything_gives_the_same(stream in fragments(), asked: bool, size in 1..20_usize) {
        let whole = run_in(asked, [stream.as_slice()]);
        prop_assert_eq!(run_in(asked, stream.chunks(size)), whole);
    }

    #[test]
    fn who_asked_gets_anything_as_it_came(stream in fragments(), size in 1..20_usize) {
        prop_assert_eq!(run_in(true, stream.chunks(size)).sent, String::from_utf8_lossy(&stream));
    }

    #[test]
    fn any_split_gives_the_same(
        end in prop::sample::select(vec!["\n", "\r\n", "\r"]),
        asked: bool,
        tail in 0..700_usize,
        sizes in prop::collection::vec(1..400_usize, 0..60),
    ) {
        let stream = everything(end);
        let stream = &stream.as_bytes()[..stream.len() - tail];
        let mut chunks = Vec::new();
        let mut rest = stream;
        for size in sizes {
            let (chunk, left) = rest.split_at(size.min(rest.len()));
            chunks.push(chunk);
            rest = left;
        }
        chunks.push(rest);
        prop_assert_eq!(run_in(asked, chunks), run_in(asked, [stream]));
    }
}
