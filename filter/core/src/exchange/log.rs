//! A request's records as text: the value of the one filter-state key, which the access log prints.
//!
//! `<marker> <boot> <vm> <context> <json>`: boot and vm in 16 hex digits, context in decimal, json an array of attempts.
//! From admission on the marker is `ADMITTED` and the array the plan; when the request is over it is `RECORDED` and the
//! array what is also sent over Flow. So a line of a stream whose VM died still says what was going on.

use std::borrow::Cow;
use std::io::Write as _;

use serde::{Deserialize, Serialize};

use crate::policy::names::ADMITTED;
use crate::proto::dataplane::{Ended, Record, Source, Usage};

/// What the value starts with once the request is over.
pub const RECORDED: &str = "RECORDED";

/// Which Envoy process, VM and gate context a value belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub boot: u64,
    pub vm: u64,
    pub context: u32,
}

/// One record in the log's JSON. Short names, and nothing that is zero: two are written per request.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Line<'a> {
    seq: u64,
    /// Admitted, control-plane time in ns.
    at: i64,
    /// Operation, 32 hex digits.
    op: String,
    attempt: u32,
    #[serde(skip_serializing_if = "is_default")]
    last: bool,
    #[serde(skip_serializing_if = "is_default")]
    org: u32,
    #[serde(skip_serializing_if = "is_default")]
    team: u32,
    #[serde(skip_serializing_if = "is_default")]
    user: u32,
    #[serde(skip_serializing_if = "is_default")]
    key: u32,
    #[serde(skip_serializing_if = "is_default")]
    session: Cow<'a, str>,
    asked: Cow<'a, str>,
    model: u32,
    backend: u32,
    credential: u32,
    policy: u64,
    /// Token counts in the order of `Usage`: input, cache_read, cache_write_5m, cache_write_1h, output, reasoning,
    /// audio_in, audio_out, images.
    #[serde(skip_serializing_if = "is_default")]
    usage: [u64; 9],
    source: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<i64>,
    #[serde(skip_serializing_if = "is_default")]
    status: u32,
    #[serde(skip_serializing_if = "is_default")]
    upstream: u32,
    #[serde(skip_serializing_if = "is_default")]
    refusal: Cow<'a, str>,
    ended: i32,
    #[serde(skip_serializing_if = "is_default")]
    first_us: u32,
    #[serde(skip_serializing_if = "is_default")]
    total_us: u32,
    #[serde(skip_serializing_if = "is_default")]
    gateway_us: u32,
    #[serde(skip_serializing_if = "is_default")]
    stream: bool,
    route: Cow<'a, str>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The value at admission.
pub fn admitted(origin: Origin, plan: &Record) -> String {
    write(ADMITTED, origin, std::slice::from_ref(plan))
}

/// The value when the request is over.
pub fn recorded(origin: Origin, records: &[Record]) -> String {
    write(RECORDED, origin, records)
}

fn write(marker: &str, origin: Origin, records: &[Record]) -> String {
    /// Longer than most.
    const LINE_BYTES: usize = 512;
    let lines: Vec<Line<'_>> = records.iter().map(Line::from).collect();
    let mut out = Vec::with_capacity(LINE_BYTES * records.len().max(1));
    // Neither formatting nor serialising numbers and strings into memory can fail.
    let _ = write!(out, "{marker} {:016x} {:016x} {} ", origin.boot, origin.vm, origin.context);
    let _ = serde_json::to_writer(&mut out, &lines);
    String::from_utf8(out).unwrap_or_default()
}

/// Reads only whose plan a filter-state value is; `None` where it is none.
pub fn admitted_origin(value: &[u8]) -> Option<Origin> {
    let text = std::str::from_utf8(value).ok()?;
    let rest = text.strip_prefix(ADMITTED)?.strip_prefix(' ')?;
    origin(rest).map(|(origin, _)| origin)
}

fn origin(text: &str) -> Option<(Origin, &str)> {
    let mut parts = text.splitn(4, ' ');
    let mut number = || parts.next().filter(|p| p.len() == 16).and_then(|p| u64::from_str_radix(p, 16).ok());
    let (boot, vm) = (number()?, number()?);
    let context = parts.next()?.parse().ok()?;
    Some((Origin { boot, vm, context }, parts.next().unwrap_or_default()))
}

/// What an access-log line says about a request that passed the gate.
#[derive(Debug, PartialEq)]
pub struct Logged {
    pub origin: Origin,
    /// Whether the request ran to its end in the VM that admitted it; where not, the records are its plan.
    pub finished: bool,
    /// What Envoy counted; `None` where the log's format does not say it.
    pub counted: Option<Counted>,
    pub records: Vec<Record>,
}

/// What Envoy itself counted of a request. Says how far one came whose VM died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The status that the client got; 0 for none.
    pub status: u32,
    /// Bytes to and from the provider as they were on the wire, in the last attempt.
    pub upstream_sent: u64,
    pub upstream_received: u64,
}

impl Counted {
    /// The word before the value is `counted=<status>,<sent>,<received>`.
    fn before(line: &str) -> Option<Self> {
        let mut numbers = line.split_ascii_whitespace().next_back()?.strip_prefix("counted=")?.split(',');
        Some(Self {
            status: numbers.next()?.parse().ok()?,
            upstream_sent: numbers.next()?.parse().ok()?,
            upstream_received: numbers.next()?.parse().ok()?,
        })
    }
}

/// Finds the value in a line of an access log, whatever stands before it. `None`: the line holds none.
///
/// # Errors
/// When a value is there but cannot be read.
pub fn find(line: &str) -> Option<Result<Logged, &'static str>> {
    // The first is the value's own: what a client wrote comes after it, inside the value, or is a path, without spaces.
    let after = |marker: &str| {
        line.match_indices(marker).find_map(|(at, _)| {
            let (origin, json) = origin(line.get(at + marker.len()..)?.strip_prefix(' ')?)?;
            Some((at, origin, json))
        })
    };
    let (finished, (at, origin, json)) = match (after(RECORDED), after(ADMITTED)) {
        (Some(recorded), Some(admitted)) if admitted.0 < recorded.0 => (false, admitted),
        (Some(recorded), _) => (true, recorded),
        (None, Some(admitted)) => (false, admitted),
        (None, None) => return None,
    };
    let counted = line.get(..at).and_then(Counted::before);
    Some(records(json).map(|records| Logged { origin, finished, counted, records }))
}

fn records(json: &str) -> Result<Vec<Record>, &'static str> {
    let mut values = serde_json::Deserializer::from_str(json).into_iter::<Vec<Line<'_>>>();
    let lines = values.next().and_then(Result::ok).ok_or("the records are not readable")?;
    lines.into_iter().map(Record::try_from).collect()
}

impl<'a> From<&'a Record> for Line<'a> {
    fn from(r: &'a Record) -> Self {
        let u = r.usage.unwrap_or_default();
        Self {
            seq: r.seq,
            at: r.admitted_ns,
            op: hex(&r.operation),
            attempt: r.attempt,
            last: r.last,
            org: r.org,
            team: r.team,
            user: r.user,
            key: r.key,
            session: Cow::Borrowed(&r.session),
            asked: Cow::Borrowed(&r.requested_model),
            model: r.model,
            backend: r.backend,
            credential: r.credential,
            policy: r.policy_revision,
            usage: [
                u.input,
                u.cache_read,
                u.cache_write_5m,
                u.cache_write_1h,
                u.output,
                u.reasoning,
                u.audio_in,
                u.audio_out,
                u.images,
            ],
            source: r.source,
            cost: r.cost_nano,
            status: r.status,
            upstream: r.upstream_status,
            refusal: Cow::Borrowed(&r.refusal),
            ended: r.ended,
            first_us: r.first_token_us,
            total_us: r.total_us,
            gateway_us: r.gateway_us,
            stream: r.stream,
            route: Cow::Borrowed(&r.route),
        }
    }
}

impl TryFrom<Line<'_>> for Record {
    type Error = &'static str;

    fn try_from(l: Line<'_>) -> Result<Self, Self::Error> {
        let operation = unhex(&l.op).ok_or("the operation is not 32 hex digits")?;
        Source::try_from(l.source).map_err(|_| "unknown source")?;
        Ended::try_from(l.ended).map_err(|_| "unknown end")?;
        let [input, cache_read, cache_write_5m, cache_write_1h, output, reasoning, audio_in, audio_out, images] =
            l.usage;
        Ok(Self {
            seq: l.seq,
            admitted_ns: l.at,
            operation: operation.into(),
            attempt: l.attempt,
            last: l.last,
            org: l.org,
            team: l.team,
            user: l.user,
            key: l.key,
            session: l.session.into_owned(),
            requested_model: l.asked.into_owned(),
            model: l.model,
            backend: l.backend,
            credential: l.credential,
            policy_revision: l.policy,
            usage: Some(Usage {
                input,
                cache_read,
                cache_write_5m,
                cache_write_1h,
                output,
                reasoning,
                audio_in,
                audio_out,
                images,
            }),
            source: l.source,
            cost_nano: l.cost,
            status: l.status,
            upstream_status: l.upstream,
            refusal: l.refusal.into_owned(),
            ended: l.ended,
            first_token_us: l.first_us,
            total_us: l.total_us,
            gateway_us: l.gateway_us,
            stream: l.stream,
            route: l.route.into_owned(),
        })
    }
}

/// Lower-case hex.
fn hex(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 * bytes.len());
    out.extend(bytes.iter().flat_map(|byte| hex_digits(*byte)));
    out
}

/// The two lower-case hex digits of a byte.
pub fn hex_digits(byte: u8) -> [char; 2] {
    [byte >> 4, byte & 15].map(|n| char::from_digit(n.into(), 16).unwrap_or_default())
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    text.as_bytes()
        .as_chunks::<2>()
        .0
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGIN: Origin = Origin { boot: 0xb007, vm: u64::MAX, context: 12 };

    fn record() -> Record {
        Record {
            seq: 3,
            admitted_ns: 1_700_000_000_000_000_000,
            operation: vec![0xab; 16].into(),
            attempt: 1,
            last: true,
            key: 9,
            requested_model: "gpt-\"4o RECORDED".into(),
            usage: Some(Usage { input: 12, output: 7, ..Default::default() }),
            source: Source::Reported.into(),
            cost_nano: Some(100),
            status: 200,
            ended: Ended::Complete.into(),
            route: "chat.completions".into(),
            ..Default::default()
        }
    }

    #[test]
    fn a_value_survives_a_log_line() {
        let value = recorded(ORIGIN, &[record(), record()]);
        let line = format!(
            "2026-01-01T00:00:00Z POST /v1/chat/completions 200 9 - via_upstream 12 34 counted=200,56,78 {value}\n"
        );
        let logged = find(&line).unwrap().unwrap();
        let counted = Some(Counted { status: 200, upstream_sent: 56, upstream_received: 78 });
        assert_eq!(logged, Logged { origin: ORIGIN, finished: true, counted, records: vec![record(), record()] });
        let other = find(&format!("a log of another format {value}")).unwrap().unwrap();
        assert_eq!(other, Logged { counted: None, ..logged });
    }

    #[test]
    fn a_plan_names_its_owner() {
        let value = admitted(ORIGIN, &record());
        assert!(value.starts_with("ADMITTED 000000000000b007 ffffffffffffffff 12 [{"), "{value}");
        assert_eq!(admitted_origin(value.as_bytes()), Some(ORIGIN));
        let logged = find(&format!("GET /ADMITTED 200 {value}")).unwrap().unwrap();
        assert!(!logged.finished && logged.records == [record()]);
        for other in ["", "ADMITTED", "ADMITTED x y z", "RECORDED 1 2 3 []", "ADMITTED 1 2", "\u{e9}"] {
            assert_eq!(admitted_origin(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_line_without_a_value_or_with_a_broken_one_is_told_apart() {
        assert!(find("GET / 404 -").is_none());
        assert!(find("POST /RECORDED 200 1 2 3 []").is_none());
        let value = "RECORDED 0000000000000001 0000000000000002 3";
        assert!(find(&format!("POST / 200 {value} [{{")).unwrap().is_err());
        assert!(find(&format!("POST / 200 {value} [{{\"op\":\"zz\"}}]")).unwrap().is_err());
        assert!(find(&format!("POST / 200 {value} []")).unwrap().is_ok());
    }
}
