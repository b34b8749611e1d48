//! What one event of a chat stream carries, read without keeping any of its text.
//! Source: <https://platform.openai.com/docs/api-reference/chat/streaming>

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::usage::Reported;
use crate::json::edit;

/// The payload of one event. Fields of other types than OpenAI's count as absent where that is harmless.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chunk<'a> {
    pub choices: Option<Choices>,
    /// As it stands, be it `null`.
    #[serde(borrow, deserialize_with = "present")]
    pub usage: Option<&'a RawValue>,
    pub error: Option<IgnoredAny>,
}

/// All choices of a chunk, summed up.
#[derive(Debug, Default)]
pub(super) struct Choices {
    pub count: usize,
    /// Bytes of content, refusals and calls, JSON escapes decoded.
    pub text: u64,
    /// Bytes of reasoning.
    pub reasoning: u64,
    /// Some choice says why it ended.
    pub finished: bool,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    finish_reason: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Text,
    refusal: Text,
    /// DeepSeek's, vLLM's and others' field for reasoning.
    reasoning_content: Text,
    /// OpenRouter's name of it; some send both with the same text.
    reasoning: Text,
    function_call: Option<Call>,
    tool_calls: Option<Vec<ToolCall>>,
    audio: Option<Audio>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ToolCall {
    function: Option<Call>,
    custom: Option<Call>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Call {
    name: Text,
    arguments: Text,
    input: Text,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Audio {
    transcript: Text,
}

impl<'a> Chunk<'a> {
    /// `None` for what is not a JSON object of this shape.
    pub(super) fn parse(payload: &'a [u8]) -> Option<Self> {
        // serde would take an array for the fields in their order.
        let object = payload.trim_ascii_start().first() == Some(&b'{');
        object.then(|| serde_json::from_slice(payload).ok())?
    }

    /// What it says about usage, if anything.
    pub(super) fn reported(&self) -> Option<Reported> {
        Reported::parse(self.usage?.get().as_bytes())
    }

    /// The extra chunk that `include_usage` brings: usage, and no choice.
    pub(super) fn is_usage_only(&self) -> bool {
        self.usage.is_some_and(|usage| usage.get() != "null")
            && self.choices.as_ref().is_none_or(|choices| choices.count == 0)
    }

    /// The bytes of `payload`, which this was parsed from, that have to go for the `usage` member to be gone.
    /// `None` without one, and where its key is spelt with escapes, as nobody does.
    pub(super) fn usage_cut(&self, payload: &[u8]) -> Option<Range<usize>> {
        const KEY: &[u8] = br#""usage""#;
        let value = self.usage?.get();
        let start = value.as_ptr().addr().checked_sub(payload.as_ptr().addr())?;
        let key = payload.get(..start)?.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end().strip_suffix(KEY)?.len();
        Some(edit::removal(payload, key..start + value.len()))
    }
}

impl Delta {
    /// All but reasoning, in bytes. No sum here can overflow: an event is no longer than a splitter holds.
    fn text(&self) -> u64 {
        let called = self.tool_calls.iter().flatten().flat_map(|call| [&call.function, &call.custom]);
        let calls = called.chain([&self.function_call]).flatten();
        let calls: u64 = calls.map(|call| call.name.0 + call.arguments.0 + call.input.0).sum();
        let audio = self.audio.as_ref().map_or(0, |audio| audio.transcript.0);
        self.content.0 + self.refusal.0 + audio + calls
    }
}

/// Reads a member that is there, be it `null`, as `Some`.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ChoicesVisitor)
    }
}

struct ChoicesVisitor;

impl<'de> Visitor<'de> for ChoicesVisitor {
    type Value = Choices;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of choices")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Choices, A::Error> {
        let mut sum = Choices::default();
        while let Some(choice) = seq.next_element::<Choice>()? {
            let delta = choice.delta.unwrap_or_default();
            sum.count += 1;
            sum.text += delta.text();
            sum.reasoning += delta.reasoning_content.0.max(delta.reasoning.0);
            sum.finished |= choice.finish_reason.is_some();
        }
        Ok(sum)
    }
}

/// The bytes of a text; of all texts inside, where servers send a list of parts in its place.
#[derive(Clone, Copy, Debug, Default)]
struct Text(u64);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or parts of one")
    }

    fn visit_str<E>(self, text: &str) -> Result<u64, E> {
        Ok(u64::try_from(text.len()).unwrap_or(u64::MAX))
    }

    fn visit_unit<E>(self) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_bool<E>(self, _: bool) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_u64<E>(self, _: u64) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_i64<E>(self, _: i64) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_f64<E>(self, _: f64) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<u64, A::Error> {
        let mut sum = 0;
        while let Some(Text(bytes)) = seq.next_element()? {
            sum += bytes;
        }
        Ok(sum)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut sum = 0;
        while let Some(Key { is_text }) = map.next_key()? {
            let Text(bytes) = map.next_value()?;
            sum += if is_text { bytes } else { 0 };
        }
        Ok(sum)
    }
}

/// A part's key: its type and ids are no text of the assistant's.
struct Key {
    is_text: bool,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl Visitor<'_> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_str<E>(self, key: &str) -> Result<Key, E> {
                Ok(Key { is_text: matches!(key, "text" | "content" | "thinking" | "reasoning" | "refusal") })
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}
