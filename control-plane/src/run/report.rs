//! What `sluicegate run` prints: a line per step as it becomes ready, then the requests.

use std::io::Write as _;
use std::time::{Duration, Instant};

/// Writes to standard output, and knows how long steps took.
#[derive(Debug)]
pub struct Report {
    began: Instant,
}

impl Report {
    pub fn new() -> Self {
        Self { began: Instant::now() }
    }

    pub fn line(&self, text: &str) {
        // Nobody reads any more: nothing to do about it.
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// A step is done: what runs, where, and how long it took.
    pub fn step(&self, what: &str, state: &str, took: Duration) {
        self.line(&format!("  {what:<14} {state}  ({})", seconds(took)));
    }

    /// One property of a request.
    pub fn property(&self, name: &str, value: &str) {
        self.line(&format!("     {name:<9} {value}"));
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

pub fn seconds(d: Duration) -> String {
    format!("{:.2} s", d.as_secs_f64())
}

/// Microseconds as milliseconds.
pub fn millis(us: i32) -> String {
    format!("{:.1} ms", f64::from(us) / 1000.0)
}

/// Nano-dollars, exactly.
pub fn dollars(nano: i64) -> String {
    let (sign, nano) = (if nano < 0 { "-" } else { "" }, nano.unsigned_abs());
    let text = format!("{sign}${}.{:09}", nano / 1_000_000_000, nano % 1_000_000_000);
    let end = text.trim_end_matches('0').len();
    // Two decimals at least.
    let least = text.len() - 7;
    text.get(..end.max(least)).unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_exact() {
        assert_eq!(dollars(0), "$0.00");
        assert_eq!(dollars(1), "$0.000000001");
        assert_eq!(dollars(216_000), "$0.000216");
        assert_eq!(dollars(-12_500_000_000), "-$12.50");
    }
}
