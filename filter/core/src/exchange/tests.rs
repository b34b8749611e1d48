//! Whole exchanges, from headers to records.

use std::net::IpAddr;
use std::rc::Rc;

use super::*;
use crate::dialect::openai::Operation;
use crate::noun::OwnerKind;
use crate::proto::dataplane::{Ended, Record, Source};
use crate::proto::policy as wire;
use crate::state::{CompiledProfile, KeyRecord, Lookup};

const CHAT: &[u8] = br#"{"messages":[{"role":"user","content":"hi"}],"model":"gpt-4o"}"#;
const STREAM: &[u8] = br#"{"model":"gpt-4o","stream":true,"messages":[]}"#;
const USAGE: &str = r#""usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14}"#;

fn policy() -> Rc<Policy> {
    let backend = |id, model: &str, price| wire::Backend {
        id,
        name: format!("openai/{model}"),
        provider: 1,
        model: model.into(),
        price,
    };
    let snapshot = wire::Snapshot {
        version: 1,
        providers: vec![wire::Provider {
            id: 1,
            name: "openai".into(),
            dialect: wire::Dialect::Openai.into(),
            authority: "api.openai.com".into(),
            path: "/v1".into(),
        }],
        backends: vec![backend(1, "gpt-4o", 1), backend(2, "gpt-4o-2024", 0)],
        models: vec![wire::Model {
            id: 7,
            name: "gpt-4o".into(),
            lists: vec![wire::WeightedList {
                weight: 1,
                positions: vec![
                    wire::Position { backend: 1, credential: 5 },
                    wire::Position { backend: 2, credential: 5 },
                ],
            }],
        }],
        prices: vec![wire::Price {
            id: 1,
            tiers: vec![wire::Tier { input: 1_000_000, output: 2_000_000, ..Default::default() }],
        }],
        ..Default::default()
    };
    Rc::new(Policy::compile(&snapshot, 3).unwrap())
}

fn record(flags: u32) -> KeyRecord {
    KeyRecord { hash: [0; 16], org: 1, team: 2, user: 3, key: 4, profile: 1, expires_unix: 0, flags }
}

fn profile(body: crate::proto::dataplane::ProfileBody) -> Rc<CompiledProfile> {
    Rc::new(CompiledProfile::compile(&prost::Message::encode_to_vec(&body)).unwrap())
}

fn anything() -> Rc<CompiledProfile> {
    profile(crate::proto::dataplane::ProfileBody { any_model: true, ..Default::default() })
}

fn head(headers: &[(&str, &str)]) -> Head {
    let all = [(":method", "POST"), (":path", "/v1/chat/completions?x=1")].iter().chain(headers);
    Head::read(all.map(|(n, v)| (n.as_bytes(), v.as_bytes())), |_| false)
}

fn reading() -> Reading {
    let identity = Identity { org: 1, team: 2, user: 3, key: 4 };
    let ticket = Ticket { identity, route: "chat.completions", ..Ticket::new(9, 100, Mono(1_000_000)) };
    Reading::new(ticket, head(&[]), Operation::ChatCompletions, 1_000).unwrap()
}

fn admit(body: &[u8]) -> Exchange {
    let mut reading = reading();
    reading.push(body).unwrap();
    reading.admit(&anything(), &policy(), Moment { now: Mono(2_000_000), now_ns: 77, random: 0 }).unwrap()
}

fn first(exchange: &mut Exchange) {
    exchange.begin(Position { backend: 1, credential: 5 }, 0, Mono(3_000_000)).unwrap();
}

fn reply(exchange: &mut Exchange, status: u32, content_type: &str, length: Option<u64>) -> ReplyBody {
    exchange.reply_head(ReplyHead {
        status,
        content_type: content_type.as_bytes(),
        content_length: length,
        encoded: false,
        end: false,
    })
}

fn close(exchange: &mut Exchange, details: &str) -> Vec<Record> {
    exchange.close(Closing { now: Mono(9_000_000), details: details.as_bytes() })
}

/// Of the one record: usage in and out, source, cost, status, how it ended.
fn outcome(records: &[Record]) -> (u64, u64, Source, Option<i64>, u32, Ended) {
    let [record] = records else { panic!("{} records", records.len()) };
    let usage = record.usage.unwrap_or_default();
    (usage.input, usage.output, record.source(), record.cost_nano, record.status, record.ended())
}

#[test]
fn a_request_is_sent_and_its_reply_booked() {
    let mut exchange = admit(CHAT);
    let upstream = exchange.begin(Position { backend: 1, credential: 5 }, 0, Mono(3_000_000)).unwrap();
    assert_eq!((upstream.authority, upstream.path.as_str()), ("api.openai.com", "/v1/chat/completions?x=1"));
    assert!(upstream.edits.is_empty() && upstream.content_length == CHAT.len() as u64);

    assert_eq!(reply(&mut exchange, 200, "application/json", Some(100)), ReplyBody::Hold);
    assert_eq!(exchange.reply_chunk(format!("{{{USAGE}").as_bytes(), false, Mono(5_000_000)), None);
    assert_eq!(exchange.reply_chunk(b"}", true, Mono(6_000_000)), None);
    assert_eq!(exchange.cost().map(|c| c.0), Some(18));

    let records = close(&mut exchange, "");
    assert_eq!(outcome(&records), (10, 4, Source::Reported, Some(18), 200, Ended::Complete));
    let record = &records[0];
    assert_eq!((record.seq, record.attempt, record.last, record.admitted_ns), (100, 1, true, 77));
    assert_eq!((record.org, record.team, record.user, record.key, record.model), (1, 2, 3, 4, 7));
    assert_eq!((record.first_token_us, record.total_us, record.gateway_us), (3_000, 8_000, 1_000 + 3_000));
}

#[test]
fn a_backends_own_model_is_written_into_the_body() {
    let mut exchange = admit(CHAT);
    first(&mut exchange);
    let upstream = exchange.begin(Position { backend: 2, credential: 5 }, 101, Mono(4_000_000)).unwrap();
    let sent = upstream.edits.rewrite(CHAT).unwrap();
    assert_eq!(sent, br#"{"messages":[{"role":"user","content":"hi"}],"model":"gpt-4o-2024"}"#);
    assert_eq!(upstream.content_length, sent.len() as u64);
    assert!(upstream.remove.is_empty());
    assert!(exchange.begin(Position { backend: 9, credential: 5 }, 102, Mono(4_000_000)).is_err());
}

#[test]
fn each_attempt_has_a_record_and_only_what_ran_costs() {
    let mut exchange = admit(CHAT);
    first(&mut exchange);
    exchange.never_sent(0);
    exchange.begin(Position { backend: 2, credential: 5 }, 101, Mono(4_000_000)).unwrap();
    reply(&mut exchange, 200, "application/json", None);
    exchange.reply_chunk(format!("{{{USAGE}}}").as_bytes(), true, Mono(5_000_000));
    let records = close(&mut exchange, "");
    assert_eq!(
        records.iter().map(|r| (r.seq, r.attempt, r.last)).collect::<Vec<_>>(),
        [(100, 1, false), (101, 2, true)]
    );
    assert_eq!(outcome(&records[..1]), (0, 0, Source::None, Some(0), 0, Ended::Unreached));
    // The second backend has no price: that is not 0.
    assert_eq!(outcome(&records[1..]), (10, 4, Source::Reported, None, 200, Ended::Complete));
}

#[test]
fn an_attempt_that_was_sent_and_cut_may_have_run() {
    let mut exchange = admit(CHAT);
    first(&mut exchange);
    exchange.begin(Position { backend: 2, credential: 5 }, 101, Mono(4_000_000)).unwrap();
    assert!(exchange.waits(0) && exchange.waits(1) && !exchange.waits(2));
    reply(&mut exchange, 200, "application/json", None);
    assert!(!exchange.waits(1));
    exchange.reply_chunk(format!("{{{USAGE}}}").as_bytes(), true, Mono(5_000_000));
    let records = close(&mut exchange, "");
    let input = (CHAT.len() as u64).div_ceil(4);
    let cost = i64::try_from(input).unwrap();
    assert_eq!(outcome(&records[..1]), (input, 0, Source::Estimated, Some(cost), 0, Ended::UpstreamCut));
}

#[test]
fn a_client_that_leaves_is_billed_for_what_streamed() {
    let mut exchange = admit(STREAM);
    first(&mut exchange);
    assert_eq!(reply(&mut exchange, 200, "text/event-stream; charset=utf-8", None), ReplyBody::Stream);
    let delta = "data: {\"choices\":[{\"delta\":{\"content\":\"12345678\"}}]}\n\n";
    exchange.reply_chunk(delta.as_bytes(), false, Mono(5_000_000));
    let records = close(&mut exchange, "downstream_remote_disconnect");
    let input = (STREAM.len() as u64).div_ceil(4);
    let cost = i64::try_from(input + 2 * 2).unwrap();
    assert_eq!(outcome(&records), (input, 2, Source::Estimated, Some(cost), 200, Ended::ClientGone));
}

#[test]
fn one_that_leaves_before_the_reply_is_billed_for_its_input() {
    let mut exchange = admit(CHAT);
    first(&mut exchange);
    let (input, output, source, _, status, ended) = outcome(&close(&mut exchange, "downstream_remote_disconnect"));
    assert_eq!((output, source, status, ended), (0, Source::Estimated, 0, Ended::ClientGone));
    assert!(input > 0);
}

#[test]
fn what_was_never_sent_costs_nothing() {
    let mut exchange = admit(CHAT);
    first(&mut exchange);
    exchange.never_sent(0);
    exchange.refuse(Refusal::UpstreamUnavailable);
    let details = "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_111}";
    assert_eq!(outcome(&close(&mut exchange, details)), (0, 0, Source::None, Some(0), 503, Ended::Unreached));
    let mut exchange = admit(CHAT);
    exchange.refuse(Refusal::UpstreamUnavailable);
    assert_eq!(
        outcome(&close(&mut exchange, "no_healthy_upstream")),
        (0, 0, Source::None, Some(0), 503, Ended::Unreached)
    );
}

#[test]
fn a_stream_that_just_stops_gets_an_error_event_and_an_estimate() {
    let mut exchange = admit(STREAM);
    first(&mut exchange);
    reply(&mut exchange, 200, "text/event-stream", None);
    let said = b"data: {\"choices\":[{\"delta\":{\"content\":\"1234\"}}]}\n\ndata: {\"cho";
    let out = exchange.reply_chunk(said, true, Mono(5_000_000)).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with("\"code\":\"upstream_cut\"}}\n\n") && !text.contains("[DONE]"), "{text}");
    let (_, output, source, _, status, ended) = outcome(&close(&mut exchange, ""));
    assert_eq!((output, source, status, ended), (1, Source::Estimated, 200, Ended::UpstreamCut));
}

#[test]
fn a_providers_refusal_of_our_credential_is_not_the_clients() {
    let mut exchange = admit(CHAT);
    first(&mut exchange);
    let refusal = Refusal::ProviderRefusedCredential { status: 401 };
    assert_eq!(reply(&mut exchange, 401, "application/json", Some(10)), ReplyBody::Refuse(refusal));
    let records = close(&mut exchange, "");
    assert_eq!(outcome(&records), (0, 0, Source::None, Some(0), 502, Ended::ProviderError));
    assert_eq!((records[0].upstream_status, records[0].refusal.as_str()), (401, "provider_refused_credential"));
}

#[test]
fn a_held_reply_that_breaks_off_is_not_what_the_client_got() {
    let mut exchange = admit(CHAT);
    first(&mut exchange);
    assert_eq!(reply(&mut exchange, 200, "application/json", Some(1_000)), ReplyBody::Hold);
    exchange.reply_chunk(b"{", false, Mono(5_000_000));
    assert!(!exchange.replied());
    exchange.refuse(Refusal::UpstreamUnavailable);
    let (_, _, source, _, status, ended) = outcome(&close(&mut exchange, "upstream_reset_before_response_started{x}"));
    assert_eq!((source, status, ended), (Source::Estimated, 503, Ended::UpstreamCut));
}

#[test]
fn a_compressed_reply_passes_unread_and_is_estimated() {
    let mut exchange = admit(STREAM);
    first(&mut exchange);
    let head =
        ReplyHead { status: 200, content_type: b"text/event-stream", content_length: None, encoded: true, end: false };
    assert_eq!(exchange.reply_head(head), ReplyBody::Pass);
    assert_eq!(exchange.reply_chunk(&[0; 40], true, Mono(5_000_000)), None);
    let (_, output, source, _, status, ended) = outcome(&close(&mut exchange, ""));
    assert_eq!((output, source, status, ended), (10, Source::Estimated, 200, Ended::Complete));
}

#[test]
fn a_providers_error_passes_and_costs_nothing() {
    let mut exchange = admit(CHAT);
    first(&mut exchange);
    assert_eq!(reply(&mut exchange, 400, "application/json", Some(10)), ReplyBody::Pass);
    assert_eq!(exchange.reply_chunk(b"{}", true, Mono(5_000_000)), None);
    assert_eq!(outcome(&close(&mut exchange, "")), (0, 0, Source::None, Some(0), 400, Ended::ProviderError));
}

#[test]
fn a_plan_is_an_estimate_of_the_first_attempt() {
    let plan = admit(CHAT).plan();
    assert_eq!((plan.seq, plan.backend, plan.source(), plan.ended()), (100, 1, Source::Estimated, Ended::Trapped));
}

#[test]
fn admission_says_what_is_wrong() {
    let refused = |body: &[u8], profile: Rc<CompiledProfile>| {
        let mut reading = reading();
        let moment = Moment { now: Mono(0), now_ns: 0, random: 0 };
        reading
            .push(body)
            .err()
            .or_else(|| reading.admit(&profile, &policy(), moment).err().map(|turned| turned.refusal))
    };
    let nothing = profile(crate::proto::dataplane::ProfileBody { models: vec![8], ..Default::default() });
    let code = |refusal: Option<Refusal>| refusal.map_or("admitted", |r| r.code());
    assert_eq!(code(refused(CHAT, anything())), "admitted");
    assert_eq!(code(refused(CHAT, nothing)), "model_not_allowed");
    assert_eq!(code(refused(br#"{"model":"gpt-9"}"#, anything())), "model_not_found");
    assert_eq!(code(refused(br#"{"model":"gpt-4o","mod\u0065l":"gpt-9"}"#, anything())), "duplicate_field");
    assert_eq!(code(refused(b"[]", anything())), "invalid_json");
    assert_eq!(code(refused(br#"{"model":"gpt-4o""#, anything())), "invalid_json");
    assert_eq!(code(refused(&[b' '; 1_001], anything())), "request_too_large");
}

#[test]
fn headers_alone_can_be_enough_to_say_no() {
    let refused = |headers: &[(&str, &str)]| {
        Reading::new(Ticket::default(), head(headers), Operation::ChatCompletions, 10).err().unwrap().refusal
    };
    assert_eq!(refused(&[("content-length", "11")]), Refusal::BodyTooLarge { limit: Some(10) });
    assert_eq!(refused(&[("content-encoding", "br")]), Refusal::UnsupportedEncoding { encoding: "br".into() });
}

#[test]
fn a_key_is_judged() {
    let known = |flags, expired, profile| Lookup::Known { record: record(flags), profile, expired };
    let judge = |lookup, client: Option<&str>| {
        let client: Option<IpAddr> = client.map(|c| c.parse().unwrap());
        Identity::judge(lookup, || client).map_err(|(refusal, identity)| (refusal, identity.key))
    };
    assert_eq!(judge(known(0, false, anything()), None).unwrap().0.key, 4);
    assert_eq!(judge(known(1, false, anything()), None).unwrap_err(), (Refusal::DisabledKey, 4));
    assert_eq!(judge(known(0, true, anything()), None).unwrap_err(), (Refusal::ExpiredKey, 4));
    assert_eq!(judge(Lookup::Unknown, None).unwrap_err(), (Refusal::UnknownKey, 0));
    assert_eq!(judge(Lookup::NotReady, None).unwrap_err(), (Refusal::NotReady, 0));
    assert_eq!(judge(Lookup::StateTooOld, None).unwrap_err(), (Refusal::StateTooOld, 0));
    let blocked = Lookup::Blocked { record: record(0), owner: OwnerKind::Team };
    assert_eq!(judge(blocked, None).unwrap_err(), (Refusal::OwnerBlocked { owner: "team" }, 4));

    let network = crate::proto::dataplane::Network { address: vec![10, 0, 0, 0].into(), prefix: 8 };
    let office = profile(crate::proto::dataplane::ProfileBody {
        any_model: true,
        networks: vec![network],
        ..Default::default()
    });
    let outside = (Refusal::NetworkNotAllowed, 4);
    assert!(judge(known(0, false, office.clone()), Some("10.1.2.3")).is_ok());
    assert!(judge(known(0, false, office.clone()), Some("::ffff:10.1.2.3")).is_ok());
    assert_eq!(judge(known(0, false, office.clone()), Some("11.1.2.3")).unwrap_err(), outside);
    assert_eq!(judge(known(0, false, office), None).unwrap_err(), outside);
}

#[test]
fn where_clusters_are_somebody_elses_a_list_is_its_first_position() {
    let mut exchange = admit(CHAT);
    let none = exchange.attach(&[("other".to_owned(), "theirs".to_owned())].into());
    assert_eq!(none, Err(Refusal::Misconfigured { option: "a cluster for this model's provider" }));
    exchange.attach(&[("openai".to_owned(), "theirs".to_owned())].into()).unwrap();
    assert_eq!((exchange.cluster.as_str(), exchange.positions.len()), ("theirs", 1));
    first(&mut exchange);
    assert!(exchange.begin(Position { backend: 2, credential: 5 }, 0, Mono(4_000_000)).is_err(), "there is no next");
}
