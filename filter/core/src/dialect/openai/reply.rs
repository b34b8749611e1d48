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
