//! The `usage` object of replies and chunks.
//!
//! Sources: <https://platform.openai.com/docs/api-reference/chat/object#chat/object-usage>; cached tokens as
//! `prompt_cache_hit_tokens`: <https://api-docs.deepseek.com/guides/kv_cache>; reasoning beside `completion_tokens`:
//! <https://docs.x.ai/docs/key-information/consumption-and-rate-limits>.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::noun::Usage;

/// As reported. Each count is `None` until some event brings it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Reported {
    prompt_tokens: Count,
    completion_tokens: Count,
    total_tokens: Count,
    prompt_cache_hit_tokens: Count,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Count,
    cache_write_tokens: Count,
    audio_tokens: Count,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: Count,
    audio_tokens: Count,
}

impl Reported {
    /// Reads the bytes of a `usage` value; `None` for anything that says nothing.
    pub(super) fn parse(raw: &[u8]) -> Option<Self> {
        // serde would take an array for the fields in their order.
        let object = raw.first() == Some(&b'{');
        object.then(|| serde_json::from_slice::<Self>(raw).ok())?.filter(Self::says_something)
    }

    fn says_something(&self) -> bool {
        self.prompt_tokens.0.or(self.completion_tokens.0).or(self.total_tokens.0).is_some()
    }

    /// Counts in streams are cumulative: what a later event says replaces what an earlier one said.
    pub(super) fn merge(&mut self, later: Self) {
        self.prompt_tokens.replace(later.prompt_tokens);
        self.completion_tokens.replace(later.completion_tokens);
        self.total_tokens.replace(later.total_tokens);
        self.prompt_cache_hit_tokens.replace(later.prompt_cache_hit_tokens);
        if let Some(later) = later.prompt_tokens_details {
            let details = self.prompt_tokens_details.get_or_insert_default();
            details.cached_tokens.replace(later.cached_tokens);
            details.cache_write_tokens.replace(later.cache_write_tokens);
            details.audio_tokens.replace(later.audio_tokens);
        }
        if let Some(later) = later.completion_tokens_details {
            let details = self.completion_tokens_details.get_or_insert_default();
            details.reasoning_tokens.replace(later.reasoning_tokens);
            details.audio_tokens.replace(later.audio_tokens);
        }
    }

    /// The input is known.
    pub(super) fn has_input(&self) -> bool {
        self.prompt_tokens.0.or(self.total_tokens.0).is_some()
    }

    /// The output is known.
    pub(super) fn has_output(&self) -> bool {
        self.completion_tokens.0.or(self.total_tokens.0).is_some()
    }

    /// Each token in exactly one field. Details that do not fit into their totals are cut to what fits, unless
    /// `total_tokens` says that they stand beside: cached tokens in front of an Anthropic model, say. Tokens that only
    /// `total_tokens` counts are reasoning, since there are providers whose `completion_tokens` leave it out.
    pub(super) fn normalise(&self) -> Usage {
        let total = self.total_tokens.or_zero();
        let prompt = self.prompt_tokens.0.unwrap_or(total.saturating_sub(self.completion_tokens.or_zero()));
        let completion = self.completion_tokens.0.unwrap_or(total.saturating_sub(prompt));
        let input = self.prompt_tokens_details.unwrap_or_default();
        let output = self.completion_tokens_details.unwrap_or_default();
        let cached = input.cached_tokens.0.unwrap_or(self.prompt_cache_hit_tokens.or_zero());
        let written = input.cache_write_tokens.or_zero();
        let unexplained = total.saturating_sub(prompt).saturating_sub(completion);

        let cache = cached.saturating_add(written);
        let cache_beside = if cache > prompt && cache <= unexplained { cache } else { 0 };
        let mut prompt = Rest(prompt.saturating_add(cache_beside));
        let cache_read = prompt.take(cached);
        let cache_write_5m = prompt.take(written);
        let audio_in = prompt.take(input.audio_tokens.or_zero());

        let reasoning_beside = unexplained - cache_beside;
        let mut completion = Rest(completion);
        let reasoning_inside = completion.take(output.reasoning_tokens.or_zero().saturating_sub(reasoning_beside));
        let audio_out = completion.take(output.audio_tokens.or_zero());
        Usage {
            input: prompt.0,
            cache_read,
            cache_write_5m,
            output: completion.0,
            reasoning: reasoning_inside.saturating_add(reasoning_beside),
            audio_in,
            audio_out,
            ..Usage::default()
        }
    }
}

/// What is left of a total.
struct Rest(u64);

impl Rest {
    /// Takes `n`, or as much as there is.
    fn take(&mut self, n: u64) -> u64 {
        let taken = n.min(self.0);
        self.0 -= taken;
        taken
    }
}

/// A count of tokens, read from whatever stands there: a number is cut to `u64`, all else is no count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count(Option<u64>);

/// No request uses as many tokens. A count beyond is a fault of the provider, and says nothing.
const MAX_TOKENS: u64 = 1_000_000_000;

impl Count {
    fn or_zero(self) -> u64 {
        self.0.unwrap_or(0)
    }

    fn replace(&mut self, later: Self) {
        self.0 = later.0.or(self.0);
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor).map(|n| Self(n.filter(|n| *n <= MAX_TOKENS)))
    }
}

struct CountVisitor;

impl<'de> Visitor<'de> for CountVisitor {
    type Value = Option<u64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_u64<E>(self, n: u64) -> Result<Option<u64>, E> {
        Ok(Some(n))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Option<u64>, E> {
        Ok(Some(u64::try_from(n).unwrap_or(0)))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Option<u64>, E> {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, which is meant")]
        Ok(Some(n as u64))
    }

    fn visit_unit<E>(self) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Option<u64>, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<u64>, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<u64>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(json: &str) -> Usage {
        Reported::parse(json.as_bytes()).unwrap().normalise()
    }

    #[test]
    fn each_token_is_counted_once() {
        let reported = r#"{"prompt_tokens":100,"completion_tokens":50,"total_tokens":150,
            "prompt_tokens_details":{"cached_tokens":60,"cache_write_tokens":20,"audio_tokens":5,"x":[1]},
            "completion_tokens_details":{"reasoning_tokens":30,"audio_tokens":4,"accepted_prediction_tokens":3}}"#;
        let expected = Usage {
            input: 15,
            cache_read: 60,
            cache_write_5m: 20,
            audio_in: 5,
            output: 16,
            reasoning: 30,
            audio_out: 4,
            ..Usage::default()
        };
        assert_eq!(usage(reported), expected);
        assert_eq!(usage(r#"{"prompt_tokens":8,"total_tokens":8}"#), Usage { input: 8, ..Usage::default() });
        let deepseek =
            r#"{"prompt_tokens":9,"completion_tokens":1,"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":1}"#;
        assert_eq!(usage(deepseek), Usage { input: 1, cache_read: 8, output: 1, ..Usage::default() });
    }

    #[test]
    fn reasoning_that_stands_beside_is_not_lost() {
        // xAI says how much it is, Gemini's compatible endpoint only the sum.
        let xai = r#"{"prompt_tokens":10120,"completion_tokens":1499,"total_tokens":14428,
            "prompt_tokens_details":{"cached_tokens":128},"completion_tokens_details":{"reasoning_tokens":2809}}"#;
        let expected = Usage { input: 9992, cache_read: 128, output: 1499, reasoning: 2809, ..Usage::default() };
        assert_eq!(usage(xai), expected);
        let gemini = r#"{"prompt_tokens":20,"completion_tokens":424,"total_tokens":1016}"#;
        assert_eq!(usage(gemini), Usage { input: 20, output: 424, reasoning: 572, ..Usage::default() });
    }

    #[test]
    fn a_cache_that_stands_beside_is_no_reasoning() {
        let beside = r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":1015,"prompt_tokens_details":{"cached_tokens":1000}}"#;
        assert_eq!(usage(beside), Usage { input: 10, cache_read: 1000, output: 5, ..Usage::default() });
    }

    #[test]
    fn details_that_do_not_fit_are_cut() {
        let odd = r#"{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15,
            "prompt_tokens_details":{"cached_tokens":99,"audio_tokens":7},
            "completion_tokens_details":{"reasoning_tokens":99,"audio_tokens":7}}"#;
        assert_eq!(usage(odd), Usage { cache_read: 10, reasoning: 5, ..Usage::default() });
    }

    #[test]
    fn odd_counts_are_read_as_far_as_they_go() {
        let odd = r#"{"prompt_tokens":3.0,"completion_tokens":-1,"total_tokens":null,"prompt_tokens_details":null,
            "completion_tokens_details":{"reasoning_tokens":"9","audio_tokens":{"a":[1,{}]}}}"#;
        assert_eq!(usage(odd), Usage { input: 3, ..Usage::default() });
        // What no request can use says nothing: the others are believed, or the usage is estimated.
        let huge = r#"{"prompt_tokens":18446744073709551615,"completion_tokens":1e30,"total_tokens":1}"#;
        assert_eq!(usage(huge), Usage { input: 1, ..Usage::default() });
        assert_eq!(Reported::parse(br#"{"prompt_tokens":4000000000000,"completion_tokens":4000000000000}"#), None);
        for nothing in ["null", "{}", r#"{"prompt_tokens":null}"#, "[1]", "7", r#"{"prompt_tokens":"#] {
            assert_eq!(Reported::parse(nothing.as_bytes()), None, "{nothing}");
        }
    }

    proptest! {
        #[test]
        fn the_sum_is_the_totals(
            p in 0..=MAX_TOKENS / 2, k in 0..=MAX_TOKENS / 2,
            cached: u32, written: u32, heard: u32, thought: u32, spoken: u32,
        ) {
            let (total, max) = (p + k, MAX_TOKENS);
            let usage = usage(&format!(
                r#"{{"prompt_tokens":{p},"completion_tokens":{k},"total_tokens":{total},
                "prompt_tokens_details":{{"cached_tokens":{cached},"cache_write_tokens":{written},"audio_tokens":{heard}}},
                "completion_tokens_details":{{"reasoning_tokens":{thought},"audio_tokens":{spoken}}}}}"#
            ));
            prop_assert_eq!((usage.all_input(), usage.all_output()), (p, k));
            prop_assert!(usage.all_input() + usage.all_output() <= max);
        }
    }
}
