//! Medians and the like.

use std::time::Duration;

/// The middle one; zero of none.
pub fn median(times: &[Duration]) -> Duration {
    quantile(times, 0.5)
}

/// The smallest time that at least the share `q` does not exceed.
pub fn quantile(times: &[Duration], q: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort();
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

pub fn longest(times: &[Duration]) -> Duration {
    times.iter().max().copied().unwrap_or_default()
}
