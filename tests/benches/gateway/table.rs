//! Figures of several rounds.

/// Of an even number of values the median is the lower one.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub smallest: f64,
    pub median: f64,
    pub largest: f64,
}

impl Spread {
    /// `NaN` of no values.
    pub fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
        let last = values.len().saturating_sub(1);
        Self { smallest: at(0), median: at(last / 2), largest: at(last) }
    }

    pub fn show(&self, decimals: usize) -> String {
        let Self { smallest, median, largest } = self;
        format!("{median:.decimals$} [{smallest:.decimals$}-{largest:.decimals$}]")
    }
}
