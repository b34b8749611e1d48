//! A reply that is no stream, metered as it passes unchanged.

use super::Operation;
use super::estimate::estimate_output;
use super::usage::Reported;
use crate::json::{Kind, Scanner};
use crate::noun::{Source, Usage};

const WANTED: &[&str] = &["usage", "model", "error"];

/// A `usage` object with every detail known today is a tenth of this.
const CAP: usize = 4096;

/// One reply. Holds the few members it needs, never the body.
#[derive(Debug)]
pub struct Reply {
    operation: Operation,
    scanner: Scanner,
    bytes: u64,
}

/// What is known at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyEnd {
    pub usage: Usage,
    pub source: Source,
    /// The model the provider says has answered.
    pub model: Option<String>,
    /// The body was one whole JSON object. If not, it was cut, or is none of this dialect.
    pub complete: bool,
}

impl Reply {
    pub fn new(operation: Operation) -> Self {
        Self { operation, scanner: Scanner::with_cap(WANTED, CAP), bytes: 0 }
    }

    /// Takes the next chunk of the body. A body that is not JSON is only counted.
    pub fn push(&mut self, chunk: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        // The scanner remembers an error, and `finish` tells.
        let _ = self.scanner.push(chunk);
    }

    /// The body has ended, or will not go on. `input_estimate` is in tokens.
    pub fn finish(self, input_estimate: u64) -> ReplyEnd {
        let scanned = self.scanner.finish().ok();
        let raw = |name| scanned.as_ref()?.get(name)?.raw.as_deref();
        let reported = raw("usage").and_then(Reported::parse);
        let model = raw("model").and_then(|raw| serde_json::from_slice(raw).ok());
        let error = scanned.as_ref().and_then(|scanned| scanned.get("error")).is_some_and(|e| e.kind != Kind::Null);
        let (usage, source) = match reported {
            Some(reported) => (reported.normalise(), Source::Reported),
            None if error => (Usage::default(), Source::None),
            None => (estimated(self.operation, input_estimate, self.bytes), Source::Estimated),
        };
        ReplyEnd { usage, source, model, complete: scanned.is_some() }
    }
}

/// A chat answer is taken to be text from end to end, so the guess is high; vectors are no tokens.
fn estimated(operation: Operation, input: u64, bytes: u64) -> Usage {
    let output = match operation {
        Operation::ChatCompletions => estimate_output(bytes),
        Operation::Embeddings => 0,
    };
    Usage { input, output, ..Usage::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAT: &str = r#"{
  "id": "chatcmpl-1",
  "object": "chat.completion",
  "created": 1757000000,
  "model": "gpt-5-2025-08-07",
  "choices": [
    {
      "index": 0,
      "message": {"role": "assistant", "content": "{\"usage\": 1} Grüße 😀", "refusal": null, "annotations": []},
      "finish_reason": "stop"
    }
  ],
  "usage": {
    "prompt_tokens": 19,
    "completion_tokens": 10,
    "total_tokens": 29,
    "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 0, "accepted_prediction_tokens": 0}
  },
  "service_tier": "default"
}
"#;

    fn metered(operation: Operation, chunks: impl IntoIterator<Item = impl AsRef<[u8]>>) -> ReplyEnd {
        let mut reply = Reply::new(operation);
        chunks.into_iter().for_each(|chunk| reply.push(chunk.as_ref()));
        reply.finish(100)
    }

    fn chat(body: &str) -> ReplyEnd {
        metered(Operation::ChatCompletions, [body])
    }

    #[test]
    fn usage_is_found_at_any_split() {
        let expected = ReplyEnd {
            usage: Usage { input: 16, cache_read: 3, output: 6, reasoning: 4, ..Usage::default() },
            source: Source::Reported,
            model: Some("gpt-5-2025-08-07".into()),
            complete: true,
        };
        for size in 1..=CHAT.len() {
            assert_eq!(metered(Operation::ChatCompletions, CHAT.as_bytes().chunks(size)), expected, "{size}");
        }
    }

    #[test]
    fn embeddings_have_input_only() {
        let body = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-2e-3]}],"model":"e","usage":{"prompt_tokens":8,"total_tokens":8}}"#;
        let end = metered(Operation::Embeddings, [body]);
        assert_eq!((end.usage, end.source), (Usage { input: 8, ..Usage::default() }, Source::Reported));
        let end = metered(Operation::Embeddings, [r#"{"object":"list","data":[]}"#]);
        assert_eq!((end.usage, end.source), (Usage { input: 100, ..Usage::default() }, Source::Estimated));
    }

    #[test]
    fn what_is_not_reported_is_estimated() {
        for body in [
            r#"{"choices":[{"message":{"content":"hello"}}],"usage":null}"#,
            r#"{"choices":[{"message":{"content":"hello"}}],"usage":{}}  "#,
            r#"{"choices":[{"message":{"content":"hello"}}],"usage":{"prompt_tokens":3}"#,
            "hello, this is no JSON",
        ] {
            let end = chat(body);
            let output = body.len().div_ceil(4).try_into().unwrap();
            assert_eq!(end.usage, Usage { input: 100, output, ..Usage::default() }, "{body}");
            assert_eq!(end.source, Source::Estimated);
            assert_eq!(end.complete, body.ends_with("}") && !body.ends_with("3}") || body.ends_with("  "), "{body}");
        }
    }

    #[test]
    fn an_error_in_place_of_an_answer_is_not_charged() {
        let end = chat(r#"{"error":{"message":"overloaded"}}"#);
        assert_eq!((end.usage, end.source, end.complete), (Usage::default(), Source::None, true));
        assert_eq!(chat(r#"{"error":null,"usage":{"prompt_tokens":1}}"#).source, Source::Reported);
    }
}
