use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

/// As openai-python 2 writes a body: messages first.
const PYTHON_2: &str = r#"{"messages":[{"role":"user","content":"say \"model\":\"x\" — Grüße"}],"model":"fast","max_tokens":64,"stream":true,"stream_options":{"include_usage":true}}"#;
/// As openai-python 3 does.
const PYTHON_3: &str =
    r#"{"model":"fast","stream":true,"messages":[{"role":"user","content":"hi"}],"temperature":1.0}"#;
/// As a person does.
const CURL: &str = "\n{\n  \"model\": \"fast\",\n  \"messages\": [ {\"role\": \"user\", \"content\": \"hi\"} ],\n  \"stream\": true,\n  \"stream_options\": { \"include_obfuscation\": false }\n}\n";

fn fields_in(operation: Operation, body: &[u8], window: usize) -> Result<RequestFields, Refusal> {
    let mut scanner = scanner(operation);
    body.chunks(window).try_for_each(|window| scanner.push(window)).map_err(refusal)?;
    read(&scanner.finish().map_err(refusal)?)
}

fn fields(body: &str) -> Result<RequestFields, Refusal> {
    fields_in(Operation::ChatCompletions, body.as_bytes(), 64 * 1024)
}

/// What the provider gets: the edited prefix, then the rest as it came.
fn sent(body: &str, model: &str) -> String {
    let edits = edits(&fields(body).unwrap(), model);
    let (prefix, rest) = body.split_at(edits.prefix_len());
    let sent = String::from_utf8(edits.rewrite(prefix.as_bytes()).unwrap()).unwrap() + rest;
    assert_eq!(i64::try_from(sent.len()).unwrap() - i64::try_from(body.len()).unwrap(), edits.size_change());
    assert_eq!(edits.is_empty(), sent == body);
    sent
}

#[test]
fn bodies_of_real_clients_change_where_they_must() {
    assert_eq!(sent(PYTHON_2, "gpt-5"), PYTHON_2.replace("\"fast\"", "\"gpt-5\""));
    assert_eq!(
        sent(PYTHON_3, "gpt-5"),
        PYTHON_3.replace(r#"{"model":"fast""#, r#"{"stream_options":{"include_usage":true},"model":"gpt-5""#)
    );
    assert_eq!(
        sent(CURL, "gpt-5"),
        CURL.replace("\"fast\"", "\"gpt-5\"").replace("{ \"include_o", "{\"include_usage\":true, \"include_o")
    );
}

#[test]
fn a_body_that_is_right_is_left_alone() {
    assert_eq!(sent(PYTHON_2, "fast"), PYTHON_2);
    let plain = r#"{"model":"f\u0061st","stream":false,"stream_options":null}"#;
    assert_eq!(sent(plain, "fast"), plain);
    assert_eq!(edits(&fields(plain).unwrap(), "fast").prefix_len(), 0);
}

#[test]
fn usage_is_asked_for_on_streams_only() {
    for (options, expected) in [
        (r#""stream_options":null"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options":{}"#, r#""stream_options":{"include_usage":true}"#),
        (r#""stream_options": { }"#, r#""stream_options": {"include_usage":true }"#),
        (r#""stream_options":{"include_usage":false}"#, r#""stream_options":{"include_usage":true}"#),
        (
            r#""stream_options":{"a":{"include_usage":1},"include_usage": null }"#,
            r#""stream_options":{"a":{"include_usage":1},"include_usage": true }"#,
        ),
        (r#""stream_options":{"a":1}"#, r#""stream_options":{"include_usage":true,"a":1}"#),
        (r#""stream_options":{"include_usag\u0065":true}"#, r#""stream_options":{"include_usag\u0065":true}"#),
    ] {
        for order in [r#"{"model":"m","stream":true,OPTIONS}"#, r#"{OPTIONS,"stream":true,"model":"m"}"#] {
            let body = order.replace("OPTIONS", options);
            assert_eq!(sent(&body, "m"), order.replace("OPTIONS", expected), "{body}");
            assert_eq!(fields(&body).unwrap().asked_usage, options == expected, "{body}");
            let quiet = body.replace(r#""stream":true"#, r#""stream":false"#);
            assert_eq!(sent(&quiet, "m"), quiet);
            assert!(!fields(&quiet).unwrap().asked_usage);
        }
    }
}

#[test]
fn a_model_is_escaped_and_so_is_what_replaces_it() {
    let body = r#"{"model":"a\"\\b\u00e9"}"#;
    assert_eq!(fields(body).unwrap().model, "a\"\\bé");
    assert_eq!(sent(body, "x\"y\\\n"), r#"{"model":"x\"y\\\n"}"#);
}

#[test]
fn refusals_name_the_field() {
    let options = |value: &str| format!(r#"{{"model":"m","stream":true,"stream_options":{value}}}"#);
    let long = format!(r#"{{"model":"{}"}}"#, "m".repeat(600));
    for (body, message) in [
        ("{}", "`model` is required."),
        (r#"{"model":null}"#, "`model` must be a string, not null."),
        (r#"{"model":["m"]}"#, "`model` must be a string, not an array."),
        (r#"{"model":""}"#, "`model` must not be empty."),
        (r#"{"model":"\ud800"}"#, "`model` is not valid Unicode."),
        (&long, "`model` is too long."),
        (r#"{"model":"m","stream":"true"}"#, "`stream` must be a boolean, not a string."),
        (r#"{"model":"m","stream":1}"#, "`stream` must be a boolean, not a number."),
        (&options("true"), "`stream_options` must be an object, not a boolean."),
        (&options(r#"{"include_usage":"yes"}"#), "`stream_options.include_usage` must be a boolean, not a string."),
        (
            &options(r#"{"include_usage":true,"include_usage":false}"#),
            "`stream_options.include_usage` stands twice in the request body.",
        ),
        (&options(&format!(r#"{{"a":"{}"}}"#, "x".repeat(600))), "`stream_options` is too long."),
        (r#"{"model":"cheap","mod\u0065l":"dear"}"#, "`model` stands twice in the request body."),
        (r#"{"stream":true,"model":"m","stream":false}"#, "`stream` stands twice in the request body."),
        ("[]", "The request body is not a JSON object: something other than `{` at byte 0."),
        ("", "The request body is not a JSON object: the end of the body inside the object at byte 0."),
    ] {
        let refusal = fields(body).unwrap_err();
        assert_eq!((refusal.message().as_str(), refusal.status()), (message, 400), "{body}");
    }
    let refusal = fields(r#"{"model":"cheap","MODEL":"dear"}"#).unwrap_err();
    assert_eq!((refusal.param(), refusal.code()), (Some("model"), "invalid_field"));
    let bytes = b"{\"model\":\"\xff\"}";
    assert!(matches!(
        fields_in(Operation::ChatCompletions, bytes, 9),
        Err(Refusal::InvalidField { field: "model", .. })
    ));
}

#[test]
fn embeddings_never_stream() {
    let body = br#"{"input":"a","stream":true,"model":"e","stream_options":7}"#;
    let fields = fields_in(Operation::Embeddings, body, 5).unwrap();
    assert!(!fields.stream && edits(&fields, "e").is_empty());
}

fn members() -> impl Strategy<Value = Vec<(&'static str, Value)>> {
    let text = prop_oneof!["[a-z\"\\\\é😀\n]{0,20}", Just("\"model\":\"x\"".to_owned())];
    let messages = text.prop_map(|text| json!([{"role": "user", "content": text, "model": "inner"}]));
    let stream = prop_oneof![Just(json!(true)), Just(json!(false)), Just(Value::Null)];
    let options = prop::sample::select(vec![
        json!(null),
        json!({}),
        json!({"include_usage": true}),
        json!({"include_usage": false, "include_obfuscation": true}),
        json!({"include_obfuscation": true}),
    ]);
    let model = prop::sample::select(vec!["fast", "gpt-5", "a\"é"]).prop_map(Value::from);
    (
        messages.prop_map(|v| ("messages", v)),
        model.prop_map(|v| ("model", v)),
        prop::option::of(stream.prop_map(|v| ("stream", v))),
        prop::option::of(options.prop_map(|v| ("stream_options", v))),
        Just(("max_tokens", json!(7))),
    )
        .prop_map(|(a, b, c, d, e)| [Some(a), Some(b), c, d, Some(e)].into_iter().flatten().collect::<Vec<_>>())
        .prop_shuffle()
}

proptest! {
    #[test]
    fn what_is_sent_is_what_came_but_for_model_and_usage(
        members in members(), pretty: bool, model in prop::sample::select(vec!["gpt-5", "x\"\\y"]), window in 1..50_usize,
    ) {
        let (comma, colon) = if pretty { (" ,\n ", " : ") } else { (",", ":") };
        let list: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\"{colon}{value}")).collect();
        let body = format!("{{{}}}", list.join(comma));
        let mut expected: Value = serde_json::from_str(&body).unwrap();
        expected["model"] = json!(model);
        if expected.get("stream") == Some(&json!(true)) {
            if !expected["stream_options"].is_object() {
                expected["stream_options"] = json!({});
            }
            expected["stream_options"]["include_usage"] = json!(true);
        }
        prop_assert_eq!(serde_json::from_str::<Value>(&sent(&body, model)).unwrap(), expected);
        prop_assert_eq!(fields_in(Operation::ChatCompletions, body.as_bytes(), window), fields(&body));
    }
}
