//! When certificates end.

use chrono::{DateTime, TimeDelta, Utc};

use super::finding::Findings;

/// Time to get a new one.
const SOON: TimeDelta = TimeDelta::days(14);

/// Judges a certificate by its end.
pub(super) fn judge(what: &str, end: DateTime<Utc>, now: DateTime<Utc>, remedy: &str, findings: &mut Findings) {
    let day = end.format("%Y-%m-%d %H:%M UTC");
    if end <= now {
        findings.bad(&format!("{what} has expired at {day}"), remedy);
    } else if end - now < SOON {
        findings.warning(&format!("{what} expires at {day}"), remedy);
    } else {
        findings.good(&format!("{what} is valid until {day}"));
    }
}
