//! A record from the wire, checked, as the ledger's columns want it. Pure.

use std::sync::Arc;

use chrono::{DateTime, NaiveDate, Utc};
use sluicegate_core::noun::Usage;
use sluicegate_core::proto::dataplane::{Ended, Record, Source};
use uuid::Uuid;

/// A record and the Envoy it comes from.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub node: Arc<str>,
    pub boot: u64,
    pub vm: u64,
    pub record: Record,
}

/// Who brought a record first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Witness {
    Flow,
    Log,
}

/// Why a record cannot go into the ledger. It is counted and acknowledged: sending it again would not make it better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("the operation is not 16 bytes")]
    Operation,
    #[error("the time of admission is more than a day ahead or a week ago")]
    Time,
    #[error("a count, an id or a status is beyond anything real")]
    Size,
    #[error("a text is longer than the filter cuts it to")]
    Text,
}

impl Rejection {
    /// A label for metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Operation => "operation",
            Self::Time => "time",
            Self::Size => "size",
            Self::Text => "text",
        }
    }
}

/// One row of `usage`.
#[derive(Clone, Debug, PartialEq)]
pub struct LedgerRow {
    pub(super) day: NaiveDate,
    pub(super) boot: i64,
    pub(super) vm: i64,
    pub(super) seq: i64,
    pub(super) operation: Uuid,
    pub(super) attempt: i32,
    pub(super) last: bool,
    pub(super) admitted_at: DateTime<Utc>,
    pub(super) node: String,
    pub(super) org: Option<i32>,
    pub(super) team: Option<i32>,
    pub(super) user: Option<i32>,
    pub(super) key: Option<i32>,
    pub(super) session: Option<String>,
    pub(super) route: String,
    pub(super) requested_model: String,
    pub(super) model: Option<i32>,
    pub(super) backend: Option<i32>,
    pub(super) credential: Option<i32>,
    pub(super) policy_revision: i64,
    pub(super) stream: bool,
    /// In the order of the columns, input to images.
    pub(super) counts: [i64; 9],
    pub(super) source: &'static str,
    pub(super) cost_nano: Option<i64>,
    pub(super) status: i32,
    pub(super) upstream_status: Option<i32>,
    pub(super) refusal: Option<String>,
    pub(super) ended: &'static str,
    pub(super) first_token_us: Option<i32>,
    pub(super) total_us: i32,
    pub(super) gateway_us: i32,
    pub(super) witness: &'static str,
}

const DAY_NS: i64 = 86_400_000_000_000;
/// The filter cuts names and sessions to 128 bytes.
const MAX_TEXT: usize = 512;
/// A trillion tokens, or a million dollars, in one attempt.
const MAX_COUNT: u64 = 1_000_000_000_000;
const MAX_COST: i64 = 1_000_000_000_000_000;

impl LedgerRow {
    /// Checks `recorded` at the database's time `now_ns`.
    ///
    /// # Errors
    /// The first thing in it that makes no sense.
    pub fn check(recorded: &Recorded, witness: Witness, now_ns: i64) -> Result<Self, Rejection> {
        let Recorded { node, boot, vm, record } = recorded;
        let age = now_ns.saturating_sub(record.admitted_ns);
        if !(-DAY_NS..=7 * DAY_NS).contains(&age) {
            return Err(Rejection::Time);
        }
        let admitted_at = DateTime::from_timestamp_nanos(record.admitted_ns);
        if record.cost_nano.is_some_and(|cost| !(0..=MAX_COST).contains(&cost)) {
            return Err(Rejection::Size);
        }
        let small = |n: u32| i32::try_from(n).map_err(|_| Rejection::Size);
        let id = |n: u32| small(n).map(|n| (n != 0).then_some(n));
        Ok(Self {
            day: admitted_at.date_naive(),
            boot: boot.cast_signed(),
            vm: vm.cast_signed(),
            seq: record.seq.cast_signed(),
            operation: Uuid::from_slice(&record.operation).map_err(|_| Rejection::Operation)?,
            attempt: small(record.attempt)?,
            last: record.last,
            admitted_at,
            node: text(node)?,
            org: id(record.org)?,
            team: id(record.team)?,
            user: id(record.user)?,
            key: id(record.key)?,
            session: some_text(&record.session)?,
            route: text(&record.route)?,
            requested_model: text(&record.requested_model)?,
            model: id(record.model)?,
            backend: id(record.backend)?,
            credential: id(record.credential)?,
            policy_revision: i64::try_from(record.policy_revision).map_err(|_| Rejection::Size)?,
            stream: record.stream,
            counts: counts(&record.usage.map(|u| Usage::from_wire(&u)).unwrap_or_default())?,
            source: source(record.source()),
            cost_nano: record.cost_nano,
            status: small(record.status)?,
            upstream_status: id(record.upstream_status)?,
            refusal: some_text(&record.refusal)?,
            ended: ended(record.ended()),
            first_token_us: id(record.first_token_us)?,
            total_us: small(record.total_us)?,
            gateway_us: small(record.gateway_us)?,
            witness: match witness {
                Witness::Flow => "flow",
                Witness::Log => "log",
            },
        })
    }

    pub(super) fn key(&self) -> (NaiveDate, i64, i64, i64) {
        (self.day, self.boot, self.vm, self.seq)
    }
}

fn counts(usage: &Usage) -> Result<[i64; 9], Rejection> {
    let all = [
        usage.input,
        usage.cache_read,
        usage.cache_write_5m,
        usage.cache_write_1h,
        usage.output,
        usage.reasoning,
        usage.audio_in,
        usage.audio_out,
        usage.images,
    ];
    if all.iter().any(|n| *n > MAX_COUNT) {
        return Err(Rejection::Size);
    }
    Ok(all.map(u64::cast_signed))
}

/// Postgres has no NUL in its texts; a client can send one.
fn text(text: &str) -> Result<String, Rejection> {
    if text.len() > MAX_TEXT { Err(Rejection::Text) } else { Ok(text.replace('\0', "\u{fffd}")) }
}

fn some_text(s: &str) -> Result<Option<String>, Rejection> {
    text(s).map(|s| (!s.is_empty()).then_some(s))
}

fn source(source: Source) -> &'static str {
    match source {
        Source::None => "none",
        Source::Reported => "reported",
        Source::Estimated => "estimated",
    }
}

fn ended(ended: Ended) -> &'static str {
    match ended {
        Ended::Unspecified => "unknown",
        Ended::Complete => "complete",
        Ended::ClientGone => "client_gone",
        Ended::UpstreamCut => "upstream_cut",
        Ended::Unreached => "unreached",
        Ended::Timeout => "timeout",
        Ended::Refused => "refused",
        Ended::ProviderError => "provider_error",
        Ended::Trapped => "trapped",
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::proto::dataplane as wire;

    use super::*;

    const NOW: i64 = 1_800_000_000_000_000_000;

    fn recorded(change: impl FnOnce(&mut Record)) -> Recorded {
        let mut record = Record {
            seq: 7,
            admitted_ns: NOW,
            operation: vec![1; 16].into(),
            attempt: 1,
            last: true,
            ..Default::default()
        };
        change(&mut record);
        Recorded { node: "node".into(), boot: u64::MAX, vm: 2, record }
    }

    fn check(change: impl FnOnce(&mut Record)) -> Result<LedgerRow, Rejection> {
        LedgerRow::check(&recorded(change), Witness::Flow, NOW)
    }

    #[test]
    fn nothing_is_none_and_not_zero() {
        let row = check(|r| r.key = 3).unwrap();
        assert_eq!((row.key, row.org, row.cost_nano, row.session), (Some(3), None, None, None));
        assert_eq!(row.boot, -1, "all 64 bits of a boot are kept");
        assert_eq!(row.day.to_string(), "2027-01-15");
    }

    #[test]
    fn the_day_is_that_of_admission_in_utc() {
        let midnight = NOW - NOW % DAY_NS;
        assert_eq!(check(|r| r.admitted_ns = midnight).unwrap().day.to_string(), "2027-01-15");
        assert_eq!(check(|r| r.admitted_ns = midnight - 1).unwrap().day.to_string(), "2027-01-14");
    }

    #[test]
    fn what_makes_no_sense_is_rejected() {
        assert_eq!(check(|r| r.operation = vec![1; 15].into()), Err(Rejection::Operation));
        assert_eq!(check(|r| r.admitted_ns = 0), Err(Rejection::Time));
        assert_eq!(check(|r| r.admitted_ns = NOW + 2 * DAY_NS), Err(Rejection::Time));
        assert_eq!(check(|r| r.cost_nano = Some(-1)), Err(Rejection::Size));
        assert_eq!(check(|r| r.org = u32::MAX), Err(Rejection::Size));
        assert_eq!(check(|r| r.policy_revision = u64::MAX), Err(Rejection::Size));
        let usage = wire::Usage { reasoning: u64::MAX, ..Default::default() };
        assert_eq!(check(|r| r.usage = Some(usage)), Err(Rejection::Size));
        assert_eq!(check(|r| r.requested_model = "m".repeat(513)), Err(Rejection::Text));
    }

    #[test]
    fn a_nul_in_a_text_is_replaced() {
        assert_eq!(check(|r| r.session = "a\0b".into()).unwrap().session.as_deref(), Some("a\u{fffd}b"));
    }

    #[test]
    fn an_ending_of_a_newer_filter_is_kept_as_unknown() {
        assert_eq!(check(|r| r.ended = 99).unwrap().ended, "unknown");
    }
}
