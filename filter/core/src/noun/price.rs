//! What a backend's tokens cost. Both planes compute costs here: the Envoy books, the control plane checks.

use super::{Nano, Usage};
use crate::proto::policy as wire;

/// Prices of one backend, by tier of the whole input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    tiers: Vec<Tier>,
}

/// Nano-dollars per million units, defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    /// Applies when the whole input is more than this many tokens; 0 in the first tier, which always applies.
    pub above: u64,
    pub input: i64,
    pub output: i64,
    pub cache_read: i64,
    pub cache_write_5m: i64,
    pub cache_write_1h: i64,
    pub reasoning: i64,
    pub audio_in: i64,
    pub audio_out: i64,
    pub image: i64,
    pub request: i64,
}

/// Why a price cannot be compiled; `field` is relative to the price.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct PriceError {
    pub field: String,
    pub reason: String,
}

impl Price {
    pub fn compile(price: &wire::Price) -> Result<Self, PriceError> {
        let fail = |field: String, reason: &str| Err(PriceError { field, reason: reason.to_owned() });
        if price.tiers.is_empty() {
            return fail("tiers".to_owned(), "at least one tier is needed");
        }
        let mut tiers: Vec<Tier> = Vec::with_capacity(price.tiers.len());
        for (i, wire) in price.tiers.iter().enumerate() {
            let tier = Tier::from_wire(wire);
            if let Some(name) = tier.negative() {
                return fail(format!("tiers[{i}].{name}"), "a price must not be negative");
            }
            let expected = match tiers.last() {
                None => tier.above == 0,
                Some(last) => tier.above > last.above,
            };
            if !expected {
                return fail(
                    format!("tiers[{i}].above"),
                    "the first tier starts at 0, each further one above the one before",
                );
            }
            tiers.push(tier);
        }
        Ok(Self { tiers })
    }

    /// The cost of `usage` and one request: one exact sum, one rounding up to a nano-dollar. `None` when it leaves `i64`.
    pub fn cost(&self, usage: &Usage) -> Option<Nano> {
        let input = usage.all_input();
        let tier = self.tiers.iter().rev().find(|t| t.above == 0 || input > t.above)?;
        let parts = [
            (usage.input, tier.input),
            (usage.cache_read, tier.cache_read),
            (usage.cache_write_5m, tier.cache_write_5m),
            (usage.cache_write_1h, tier.cache_write_1h),
            (usage.output, tier.output),
            (usage.reasoning, tier.reasoning),
            (usage.audio_in, tier.audio_in),
            (usage.audio_out, tier.audio_out),
            (usage.images, tier.image),
            (1, tier.request),
        ];
        // Ten products of u64 by a non-negative i64 stay below i128's 2^127 only one at a time: add checked.
        let mut sum: i128 = 0;
        for (units, price) in parts {
            sum = sum.checked_add(i128::from(units).checked_mul(i128::from(price))?)?;
        }
        i64::try_from((sum.checked_add(999_999)?) / 1_000_000).ok().map(Nano)
    }
}

impl Tier {
    fn from_wire(t: &wire::Tier) -> Self {
        let cache_write_5m = t.cache_write_5m.unwrap_or(t.input);
        Self {
            above: t.above,
            input: t.input,
            output: t.output,
            cache_read: t.cache_read.unwrap_or(t.input),
            cache_write_5m,
            cache_write_1h: t.cache_write_1h.unwrap_or(cache_write_5m),
            reasoning: t.reasoning.unwrap_or(t.output),
            audio_in: t.audio_in.unwrap_or(t.input),
            audio_out: t.audio_out.unwrap_or(t.output),
            image: t.image,
            request: t.request,
        }
    }

    /// The first field below zero, by its name on the wire.
    fn negative(&self) -> Option<&'static str> {
        [
            ("input", self.input),
            ("output", self.output),
            ("cache_read", self.cache_read),
            ("cache_write_5m", self.cache_write_5m),
            ("cache_write_1h", self.cache_write_1h),
            ("reasoning", self.reasoning),
            ("audio_in", self.audio_in),
            ("audio_out", self.audio_out),
            ("image", self.image),
            ("request", self.request),
        ]
        .into_iter()
        .find_map(|(name, price)| (price < 0).then_some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(above: u64, input: i64, output: i64) -> wire::Tier {
        wire::Tier { above, input, output, ..Default::default() }
    }

    fn price(tiers: Vec<wire::Tier>) -> Price {
        Price::compile(&wire::Price { id: 1, tiers }).unwrap()
    }

    #[test]
    fn one_sum_one_ceiling() {
        // $2.50 and $10 per million tokens.
        let p = price(vec![tier(0, 2_500_000_000, 10_000_000_000)]);
        let usage = Usage { input: 12, output: 7, ..Default::default() };
        assert_eq!(p.cost(&usage), Some(Nano(12 * 2_500 + 7 * 10_000)));
        // $0.0375 per million: one token is 37.5 nano-dollars, rounded up once.
        let p = price(vec![tier(0, 37_500_000, 0)]);
        assert_eq!(p.cost(&Usage { input: 1, ..Default::default() }), Some(Nano(38)));
        assert_eq!(p.cost(&Usage { input: 2, ..Default::default() }), Some(Nano(75)));
    }

    #[test]
    fn the_highest_exceeded_tier_prices_the_whole_request() {
        let p = price(vec![tier(0, 1_000_000, 0), tier(200_000, 2_000_000, 0)]);
        let cost = |input, cache_read| p.cost(&Usage { input, cache_read, ..Default::default() });
        assert_eq!(cost(200_000, 0), Some(Nano(200_000)));
        assert_eq!(cost(1, 200_000), Some(Nano(400_002)));
    }

    #[test]
    fn overflow_is_none() {
        let p = price(vec![tier(0, i64::MAX, i64::MAX)]);
        assert_eq!(p.cost(&Usage { input: u64::MAX, output: u64::MAX, ..Default::default() }), None);
    }

    #[test]
    fn a_bad_price_names_its_field() {
        let error = |tiers| Price::compile(&wire::Price { id: 1, tiers }).unwrap_err().field;
        assert_eq!(error(vec![]), "tiers");
        assert_eq!(error(vec![tier(0, 1, -1)]), "tiers[0].output");
        assert_eq!(error(vec![tier(5, 1, 1)]), "tiers[0].above");
        assert_eq!(error(vec![tier(0, 1, 1), tier(0, 1, 1)]), "tiers[1].above");
    }
}
