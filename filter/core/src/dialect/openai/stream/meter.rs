//! What a chat stream uses: as its provider reports it, else estimated from its text.

use super::Ending;
use super::forward::Fate;
use crate::dialect::openai::delta::Chunk;
use crate::dialect::openai::estimate::estimate_output;
use crate::dialect::openai::usage::Reported;
use crate::noun::{Source, Usage};
use crate::sse::Event;

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Meter {
    reported: Option<Reported>,
    /// Text came after the last usage, which therefore does not count it.
    outdated: bool,
    /// Bytes of the assistant's text and calls.
    pub(super) text: u64,
    /// Bytes of its reasoning.
    pub(super) reasoning: u64,
    pub(super) done: bool,
    pub(super) finished: bool,
    pub(super) error: bool,
}

impl Meter {
    /// Reads a whole event.
    pub(super) fn event(&mut self, event: Event<'_>, verbatim: bool) -> Fate {
        let Some(data) = event.data() else { return Fate::Keep };
        if is_done(&data) {
            self.done = true;
            return Fate::Keep;
        }
        let named_error = event.name() == Some(b"error");
        self.error |= named_error;
        let Some(chunk) = Chunk::parse(&data).filter(|_| !named_error) else { return Fate::Keep };
        self.count(&chunk);
        if verbatim || chunk.error.is_some() || chunk.usage.is_none() {
            return Fate::Keep;
        }
        if chunk.is_usage_only() {
            return Fate::Drop;
        }
        let cut = chunk.usage_cut(&data);
        let raw = cut.and_then(|cut| Some(event.raw_offset(cut.start)?..event.raw_offset(cut.end)?));
        raw.map_or(Fate::Keep, Fate::Cut)
    }

    /// Reads what the stream ended with, if that is an event at all, but for its blank line.
    pub(super) fn last(&mut self, event: Event<'_>) -> Option<Fate> {
        let whole = match event.data() {
            Some(data) => is_done(&data) || serde_json::from_slice::<serde::de::IgnoredAny>(&data).is_ok(),
            None => false,
        };
        whole.then(|| self.event(event, false))
    }

    fn count(&mut self, chunk: &Chunk<'_>) {
        if chunk.error.is_some() {
            self.error = true;
        } else if let Some(choices) = &chunk.choices {
            self.outdated |= choices.text + choices.reasoning > 0;
            self.text = self.text.saturating_add(choices.text);
            self.reasoning = self.reasoning.saturating_add(choices.reasoning);
            self.finished |= choices.finished;
        }
        if let Some(reported) = chunk.reported() {
            self.reported.get_or_insert_default().merge(reported);
            self.outdated = false;
        }
    }

    /// The first byte of an answer has come.
    pub(super) fn answered(&self) -> bool {
        self.text > 0 || self.reasoning > 0
    }

    pub(super) fn ending(&self) -> Ending {
        if self.error {
            Ending::Failed
        } else if self.done || (self.finished && self.reported.is_some()) {
            Ending::Complete
        } else {
            Ending::Cut
        }
    }

    /// What the provider said, as far as it said it. What it said nothing about is estimated, and so is output
    /// that came after it spoke last. An error in place of an answer is not charged.
    pub(super) fn usage(&self, input_estimate: u64) -> (Usage, Source) {
        let reported = self.reported.unwrap_or_default();
        let mut usage = reported.normalise();
        let has_output = reported.has_output() && !self.outdated;
        if reported.has_input() && has_output {
            return (usage, Source::Reported);
        }
        if self.reported.is_none() && self.error && !self.answered() {
            return (Usage::default(), Source::None);
        }
        if !reported.has_input() {
            usage.input = input_estimate;
        }
        let written = estimate_output(self.text).saturating_add(estimate_output(self.reasoning));
        if !has_output && usage.all_output() < written {
            usage.output = estimate_output(self.text);
            usage.reasoning = estimate_output(self.reasoning);
            usage.audio_out = 0;
        }
        (usage, Source::Estimated)
    }
}

fn is_done(data: &[u8]) -> bool {
    data.trim_ascii() == b"[DONE]"
}
