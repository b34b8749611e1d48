//! Money as a checked integer.

use std::fmt;

/// Nano-dollars. Never a float, never a silent zero: arithmetic that leaves `i64` is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nano(pub i64);

impl Nano {
    pub const PER_DOLLAR: i64 = 1_000_000_000;

    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// Reads a decimal dollar amount such as `2.50` or `0.0375` exactly; `None` for anything else
    /// (a sign, an exponent, more than nine digits after the point, a value beyond `i64`).
    pub fn parse_dollars(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 9 {
            return None;
        }
        let scale = 10_i64.checked_pow(u32::try_from(9 - fraction.len()).ok()?)?;
        let whole = whole.parse::<i64>().ok()?.checked_mul(Self::PER_DOLLAR)?;
        let fraction = fraction.parse::<i64>().ok()?.checked_mul(scale)?;
        whole.checked_add(fraction).map(Self)
    }
}

/// Dollars with as many digits as needed and at least two: `0.00`, `2.50`, `0.0000375`.
impl fmt::Display for Nano {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let whole = self.0.unsigned_abs() / Self::PER_DOLLAR.unsigned_abs();
        let fraction = format!("{:09}", self.0.unsigned_abs() % Self::PER_DOLLAR.unsigned_abs());
        let trimmed = fraction.trim_end_matches('0');
        write!(f, "{sign}{whole}.{trimmed:0<2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_survive_both_ways() {
        for text in ["0.00", "2.50", "0.0375", "0.000000001", "9223372036.854775807"] {
            assert_eq!(Nano::parse_dollars(text).unwrap().to_string(), text);
        }
        assert_eq!(Nano::parse_dollars("3").unwrap().to_string(), "3.00");
        assert_eq!(Nano(-1_500_000_000).to_string(), "-1.50");
        assert_eq!(Nano(i64::MIN).to_string(), "-9223372036.854775808");
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in
            ["", ".", "-1", "+1", "1e3", "1.", ".5", "0.0000000001", "9223372036.854775808", "99999999999", " 1", "１"]
        {
            assert_eq!(Nano::parse_dollars(text), None, "{text:?}");
        }
    }
}
