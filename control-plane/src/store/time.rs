//! Times as people write them.

use chrono::{DateTime, Datelike as _, NaiveDate, NaiveTime, Utc};
use serde::{Deserialize as _, Deserializer};

/// `2030-01-01T00:00:00Z`, any other RFC 3339 time, or a date, which is its midnight in UTC; of a year that Postgres has.
fn parse(text: &str) -> Option<DateTime<Utc>> {
    let date = || Some(text.parse::<NaiveDate>().ok()?.and_time(NaiveTime::MIN).and_utc());
    let time = DateTime::parse_from_rfc3339(text).ok().map(|time| time.to_utc()).or_else(date);
    time.filter(|time| (1..=9999).contains(&time.year()))
}

/// A field that may hold a time.
pub(super) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let wants = || serde::de::Error::custom("wants a time such as 2030-01-01T00:00:00Z, or a date such as 2030-01-01");
    parse(&text).map(Some).ok_or_else(wants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_its_midnight() {
        let time = |text| parse(text).map(|time| time.to_rfc3339());
        assert_eq!(time("2026-11-30").as_deref(), Some("2026-11-30T00:00:00+00:00"));
        assert_eq!(time("2026-11-30T01:00:00+01:00").as_deref(), Some("2026-11-30T00:00:00+00:00"));
        for bad in [
            "",
            "2026-13-01",
            "tomorrow",
            "2026-11-30T25:00:00Z",
            "1700000000",
            "0000-01-01",
            "-262143-01-01",
            "+262142-12-31",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
