use std::ops::Range;

use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::*;

const WANTED: &[&str] = &["model", "stream", "stream_options"];

fn scan_in(document: &[u8], windows: impl Iterator<Item = usize>) -> Result<Scanned, ScanError> {
    let mut scanner = Scanner::new(WANTED);
    let mut rest = document;
    for size in windows {
        let (window, left) = rest.split_at(size.min(rest.len()));
        scanner.push(window)?;
        rest = left;
    }
    scanner.push(rest)?;
    scanner.finish()
}

fn scan(document: &[u8]) -> Result<Scanned, ScanError> {
    scan_in(document, std::iter::empty())
}

fn kind_of(document: &str) -> ScanErrorKind {
    scan(document.as_bytes()).unwrap_err().kind
}

#[test]
fn spans_and_raw_values() {
    let document =
        r#" { "messages" : [{"model":"inner"}], "model" : "a\"b" ,"stream":true, "stream_options" :{"x":[1,{}]} }"#;
    let scanned = scan(document.as_bytes()).unwrap();
    let at = |range: &Range<usize>| &document[range.clone()];
    let model = scanned.get("model").unwrap();
    assert_eq!(at(&model.key), r#""model""#);
    assert_eq!(at(&model.value), r#""a\"b""#);
    assert_eq!(model.raw.as_deref(), Some(br#""a\"b""#.as_slice()));
    let options = scanned.get("stream_options").unwrap();
    assert_eq!((at(&options.value), options.kind), (r#"{"x":[1,{}]}"#, Kind::Object));
    assert_eq!(scanned.get("stream").unwrap().kind, Kind::Bool);
    assert_eq!(scanned.get("messages"), None);
    assert_eq!((scanned.body_start, scanned.empty), (2, false));
    assert!(scan(b" { } ").unwrap().empty);
}

#[test]
fn every_kind_is_told_by_its_first_byte() {
    for (value, kind) in [
        ("{}", Kind::Object),
        ("[]", Kind::Array),
        (r#""""#, Kind::String),
        ("-0.5e+7", Kind::Number),
        ("7", Kind::Number),
        ("false", Kind::Bool),
        ("true", Kind::Bool),
        ("null", Kind::Null),
    ] {
        let document = format!(r#"{{"model":{value}}}"#);
        let scanned = scan(document.as_bytes()).unwrap();
        let model = scanned.get("model").unwrap();
        assert_eq!((model.kind, &document[model.value.clone()]), (kind, value));
    }
}

#[test]
fn only_so_much_of_a_value_is_kept() {
    let fits = format!(r#"{{"model":"{}"}}"#, "m".repeat(DEFAULT_CAP - 2));
    let over = format!(r#"{{"model":"{}"}}"#, "m".repeat(DEFAULT_CAP - 1));
    assert_eq!(scan(fits.as_bytes()).unwrap().get("model").unwrap().raw.as_ref().unwrap().len(), DEFAULT_CAP);
    for windows in [usize::MAX, 1, 100] {
        let scanned = scan_in(over.as_bytes(), std::iter::repeat_n(windows, over.len())).unwrap();
        let model = scanned.get("model").unwrap();
        assert_eq!((model.raw.as_ref(), model.value.len()), (None, DEFAULT_CAP + 1));
    }
}

#[test]
fn escaped_keys_are_what_they_say() {
    for key in [r"mod\u0065l", r"\u006d\u006F\u0064\u0065\u006c", r"\u006Dodel"] {
        let document = format!(r#"{{"{key}":"m"}}"#);
        assert_eq!(scan(document.as_bytes()).unwrap().get("model").unwrap().key, 1..key.len() + 3, "{key}");
        assert_eq!(kind_of(&format!(r#"{{"model":"a","{key}":"b"}}"#)), ScanErrorKind::Duplicate("model"));
        assert_eq!(kind_of(&format!(r#"{{"{key}":"a","x":1,"model":"b"}}"#)), ScanErrorKind::Duplicate("model"));
    }
    for key in [
        r"mod\u0065l ",
        r"model\u0000",
        r"\/model",
        r"mo\ud83d\ude00",
        r"\\u006dodel",
        "modelmodelmodelmodelmodelmodelmodel",
    ] {
        let document = format!(r#"{{"{key}":"m"}}"#);
        assert_eq!(scan(document.as_bytes()).unwrap().get("model"), None, "{key}");
    }
}

#[test]
fn a_key_in_another_case_is_refused() {
    for key in ["Model", "MODEL", r"mode\u004c"] {
        assert_eq!(kind_of(&format!(r#"{{"model":"a","{key}":"b"}}"#)), ScanErrorKind::Spelling("model"), "{key}");
    }
    for key in ["\u{17f}tream", r"\u017ftream", "S\u{54}REAM"] {
        assert_eq!(kind_of(&format!(r#"{{"{key}":true}}"#)), ScanErrorKind::Spelling("stream"), "{key}");
    }
    scan("{\"model\":\"a\",\"Mödel\":1,\"x\":{\"Model\":2}}".as_bytes()).unwrap();
}

#[test]
fn names_further_down_are_others() {
    let document = r#"{"a":{"model":1,"model":2},"b":[{"stream":1}],"model":"m","c":{"model":"n"}}"#;
    let scanned = scan(document.as_bytes()).unwrap();
    assert_eq!(&document[scanned.get("model").unwrap().value.clone()], r#""m""#);
    assert_eq!(scanned.get("stream"), None);
}

#[test]
fn two_megabytes_before_the_model() {
    let document = format!(r#"{{"messages":[{{"content":"{}"}}],"model":"m"}}"#, "x\\n\\\"é".repeat(300_000));
    let scanned = scan_in(document.as_bytes(), std::iter::repeat_n(64 * 1024, 40)).unwrap();
    assert_eq!(&document[scanned.get("model").unwrap().value.clone()], r#""m""#);
}

#[test]
fn every_fault_has_its_place() {
    for (document, offset, kind) in [
        ("", 0, ScanErrorKind::Truncated),
        (" [1]", 1, ScanErrorKind::NotAnObject),
        ("\u{feff}{}", 0, ScanErrorKind::NotAnObject),
        ("{", 1, ScanErrorKind::Truncated),
        (r#"{"a":1"#, 6, ScanErrorKind::Truncated),
        ("{} x", 3, ScanErrorKind::Trailing),
        ("{}{}", 2, ScanErrorKind::Trailing),
        (r#"{"a" 1}"#, 5, ScanErrorKind::Unexpected),
        (r#"{"a":1,}"#, 7, ScanErrorKind::Unexpected),
        (r#"{,"a":1}"#, 1, ScanErrorKind::Unexpected),
        (r#"{"a":[1,]}"#, 8, ScanErrorKind::Unexpected),
        (r#"{"a":[1}"#, 7, ScanErrorKind::Unexpected),
        (r#"{"a":1]"#, 6, ScanErrorKind::Unexpected),
        (r#"{"a":'b'}"#, 5, ScanErrorKind::Unexpected),
        (r#"{"a":NaN}"#, 5, ScanErrorKind::Unexpected),
        (r#"{"a":nul}"#, 8, ScanErrorKind::Unexpected),
        (r#"{"a":truee}"#, 9, ScanErrorKind::Unexpected),
        (r#"{"a":01}"#, 6, ScanErrorKind::Unexpected),
        (r#"{"a":+1}"#, 5, ScanErrorKind::Unexpected),
        (r#"{"a":-}"#, 6, ScanErrorKind::Number),
        (r#"{"a":1.}"#, 7, ScanErrorKind::Number),
        (r#"{"a":1e}"#, 7, ScanErrorKind::Number),
        (r#"{"a":"\x"}"#, 7, ScanErrorKind::Escape),
        (r#"{"a":"\u12g4"}"#, 10, ScanErrorKind::Escape),
        ("{\"a\":\"12345678901\n\"}", 17, ScanErrorKind::Control),
        ("{\"a\0\":1}", 3, ScanErrorKind::Control),
    ] {
        let error = ScanError { offset, kind };
        assert_eq!(scan(document.as_bytes()), Err(error.clone()), "{document}");
        let one_by_one = scan_in(document.as_bytes(), std::iter::repeat_n(1, document.len()));
        assert_eq!(one_by_one, Err(error), "{document}");
    }
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1));
    scan(nested(MAX_DEPTH as usize).as_bytes()).unwrap();
    assert_eq!(kind_of(&nested(MAX_DEPTH as usize + 1)), ScanErrorKind::TooDeep);
    let mixed = r#"{"a":[{"b":["#.repeat(32) + "1" + &"]}".repeat(64);
    scan(mixed.as_bytes()).unwrap();
}

#[test]
fn an_error_stays() {
    let mut scanner = Scanner::new(WANTED);
    let error = scanner.push(b"{]").unwrap_err();
    assert_eq!(scanner.push(b"{}"), Err(error.clone()));
    assert_eq!(scanner.finish(), Err(error));
}

/// Bytes that are likely to be, or to break, JSON.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => prop::sample::select(&br#"{}[]",:\0123456789.eE+-truefalsn"#[..]),
        1 => prop::sample::select(&b" \n\t\r\x00\x1f\x7f\x80\xc3\xff"[..]),
        1 => any::<u8>(),
    ]
}

fn value() -> impl Strategy<Value = String> {
    let key = prop_oneof![Just("model".to_owned()), Just("a\\u0062".to_owned()), "[a-z]{0,9}"];
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        "-?(0|[1-9][0-9]{0,3})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?",
        r#""([ a-zé😀]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}){0,12}""#,
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        let space = prop::sample::select(&["", " ", "\n\t", "\r\n  "][..]);
        let member = (space, key.clone(), inner.clone()).prop_map(|(s, k, v)| format!("{s}\"{k}\"{s}:{s}{v}{s}"));
        prop_oneof![
            prop::collection::vec(inner, 0..5).prop_map(|v| format!("[{}]", v.join(","))),
            prop::collection::vec(member, 0..5).prop_map(|v| format!("{{{}}}", v.join(","))),
        ]
    })
}

/// Objects, of which some have wanted members.
fn object() -> impl Strategy<Value = String> {
    let key = prop::sample::select(&["model", "stream", "stream_options", "a", "b", "messages", "m\\u006fdel"][..]);
    prop::collection::vec((key, value()), 0..6).prop_map(|members| {
        let members: Vec<_> = members.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
        format!("{{{}}}", members.join(", "))
    })
}

/// What `serde_json` says to an object: neither it nor the scanner looks into strings then.
fn is_json(document: &[u8]) -> bool {
    serde_json::from_slice::<IgnoredAny>(document).is_ok()
}

/// The scanner's verdict without what it is stricter in.
fn verdict(document: &[u8]) -> Option<bool> {
    match scan(document) {
        Ok(_) => Some(true),
        Err(ScanError {
            kind: ScanErrorKind::Duplicate(_) | ScanErrorKind::Spelling(_) | ScanErrorKind::TooDeep,
            ..
        }) => None,
        Err(_) => Some(false),
    }
}

proptest! {
    #[test]
    fn generated_objects_are_judged_as_by_serde_json(document in object()) {
        prop_assert!(is_json(document.as_bytes()));
        prop_assert_ne!(verdict(document.as_bytes()), Some(false));
    }

    #[test]
    fn mutated_objects_are_judged_as_by_serde_json(
        document in object(),
        mutations in prop::collection::vec((any::<prop::sample::Index>(), byte(), 0..3_u8), 1..4),
    ) {
        let mut document = document.into_bytes();
        for (place, byte, how) in mutations {
            let at = place.index(document.len() + 1);
            match how {
                0 => document.insert(at, byte),
                1 if at < document.len() => document[at] = byte,
                _ if at < document.len() => drop(document.remove(at)),
                _ => {}
            }
            // A mutated first byte may make another kind of value of it, which is JSON but no object.
            prop_assume!(document.trim_ascii_start().first() == Some(&b'{'));
        }
        if let Some(valid) = verdict(&document) {
            prop_assert_eq!(valid, is_json(&document), "{}", String::from_utf8_lossy(&document));
        }
    }

    #[test]
    fn bytes_at_random_are_judged_as_by_serde_json(tail in prop::collection::vec(byte(), 0..12)) {
        let document = [b"{".as_slice(), &tail].concat();
        if let Some(valid) = verdict(&document) {
            prop_assert_eq!(valid, is_json(&document), "{}", String::from_utf8_lossy(&document));
        }
    }

    #[test]
    fn what_it_found_is_what_serde_json_finds(document in object()) {
        if let Ok(scanned) = scan(document.as_bytes()) {
            for name in WANTED {
                let Some(member) = scanned.get(name) else {
                    // Lone surrogates: what `serde_json` refuses where it must decode.
                    if let Ok(parsed) = serde_json::from_str::<serde_json::Value>(&document) {
                        prop_assert_eq!(parsed.get(name), None);
                    }
                    continue;
                };
                let value = &document[member.value.clone()];
                prop_assert_eq!(member.raw.as_deref().unwrap_or(value.as_bytes()), value.as_bytes());
                if let Ok(parsed) = serde_json::from_str::<serde_json::Value>(&document) {
                    prop_assert_eq!(parsed.get(name), Some(&serde_json::from_str(value).unwrap()));
                    prop_assert_eq!(serde_json::from_str::<String>(&document[member.key.clone()]).unwrap(), *name);
                }
            }
        }
    }

    #[test]
    fn any_split_gives_the_same(
        document in prop_oneof![object().prop_map(String::into_bytes), prop::collection::vec(byte(), 0..30)],
        windows in prop::collection::vec(0..9_usize, 0..60),
    ) {
        let whole = scan(&document);
        prop_assert_eq!(&scan_in(&document, windows.into_iter()), &whole);
        prop_assert_eq!(&scan_in(&document, std::iter::repeat_n(1, document.len())), &whole);
    }
}
