//! A chat stream on its way to the client: metered, and without what only the gateway asked for.

use std::borrow::Cow;
use std::ops::Range;

use super::delta::Chunk;
use super::estimate::estimate_output;
use super::usage::Reported;
use crate::noun::{Source, Usage};
use crate::sse::{Event, Piece, Splitter};

/// One stream. Holds at most one unfinished event, and counts.
#[derive(Debug)]
pub struct Stream {
    splitter: Splitter,
    /// The client asked for usage itself, so it gets every byte as it came.
    verbatim: bool,
    meter: Meter,
    /// The last piece was dropped, so its tail is too.
    dropped: bool,
    /// Whether what was forwarded ends between events.
    at_boundary: bool,
}

/// What to send the client in place of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Forward<'a> {
    /// The chunk as it came.
    Unchanged,
    /// These bytes; none when the chunk completes no event, or only one that was not asked for.
    Replace(Cow<'a, [u8]>),
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// With `[DONE]`; or, where a server never sends it, after a finish reason and usage.
    Complete,
    /// The provider sent an error event.
    Failed,
    /// In the middle.
    Cut,
}

/// What is known at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEnd {
    /// Held bytes that the client still has to get: a last event that no blank line ended.
    pub rest: Vec<u8>,
    pub ending: Ending,
    pub usage: Usage,
    pub source: Source,
    /// After `rest`, the client has whole events only. If not, a blank line has to come before another event.
    pub at_boundary: bool,
}

impl Stream {
    /// `asked_usage`: the client set `include_usage` itself, as [`super::request::RequestFields`] says.
    pub fn new(asked_usage: bool) -> Self {
        Self {
            splitter: Splitter::default(),
            verbatim: asked_usage,
            meter: Meter::default(),
            dropped: false,
            at_boundary: true,
        }
    }

    /// Takes the next chunk of the provider's body. Whole events go on at once, a begun one when it is complete.
    pub fn push<'a>(&mut self, chunk: &'a [u8]) -> Forward<'a> {
        if chunk.is_empty() {
            return Forward::Unchanged;
        }
        if self.verbatim {
            return self.meter_only(chunk);
        }
        let mut out = Output::new(chunk, self.splitter.held() > 0);
        let Self { splitter, meter, dropped, .. } = self;
        splitter.push(chunk, |piece| match piece {
            Piece::Event(event) => {
                let fate = meter.event(event, false);
                *dropped = matches!(fate, Fate::Drop);
                out.event(event, &fate);
            }
            Piece::Tail(raw) if *dropped => out.skip(raw),
            Piece::Tail(raw) => out.keep(raw),
            Piece::Opaque(raw) => {
                *dropped = false;
                out.keep(raw);
            }
        });
        // What is held has not been forwarded.
        self.at_boundary = self.splitter.at_boundary() || self.splitter.held() > 0;
        out.finish()
    }

    fn meter_only<'a>(&mut self, chunk: &[u8]) -> Forward<'a> {
        let meter = &mut self.meter;
        self.splitter.push(chunk, |piece| match piece {
            Piece::Event(event) => drop(meter.event(event, true)),
            Piece::Tail(_) | Piece::Opaque(_) => {}
        });
        self.at_boundary = self.splitter.at_boundary();
        Forward::Unchanged
    }

    /// The first byte of an answer has come: content, reasoning, a refusal or a call.
    pub fn first_token_seen(&self) -> bool {
        self.meter.text > 0 || self.meter.reasoning > 0
    }

    /// Some choice has said why it ended.
    pub fn finish_reason_seen(&self) -> bool {
        self.meter.finished
    }

    /// The provider sent an error event.
    pub fn error_seen(&self) -> bool {
        self.meter.error
    }

    /// The provider's end mark has come.
    pub fn done_seen(&self) -> bool {
        self.meter.done
    }

    /// What the stream would cost if it ended now: for a client that leaves. `input_estimate` is in tokens.
    pub fn usage(&self, input_estimate: u64) -> (Usage, Source) {
        self.meter.usage(input_estimate)
    }

    /// The provider's body has ended, or will not go on. `input_estimate` is in tokens.
    pub fn finish(self, input_estimate: u64) -> StreamEnd {
        let Self { splitter, verbatim, mut meter, mut at_boundary, .. } = self;
        let mut rest = Vec::new();
        splitter.finish(|event| match meter.last(event) {
            Some(_) if verbatim => {}
            Some(fate) => {
                rest = fate.parts(event.raw()).concat();
                at_boundary = rest.is_empty();
            }
            // Half an event: readers would drop it, and what comes after it must not be glued to it.
            None => {}
        });
        let (usage, source) = meter.usage(input_estimate);
        StreamEnd { rest, ending: meter.ending(), usage, source, at_boundary }
    }
}

impl StreamEnd {
    /// What to send after `rest` so that a stream which did not complete ends with an error and not as if it had.
    /// `body` is that of [`super::error`]. Source: `data: {"error":..}` is what OpenAI's SDKs raise.
    pub fn error_event(&self, body: &[u8]) -> Vec<u8> {
        let gap: &[u8] = if self.at_boundary { b"" } else { b"\n\n" };
        [gap, b"data: ", body, b"\n\n"].concat()
    }
}

/// What becomes of an event.
enum Fate {
    Keep,
    Drop,
    /// Kept without these raw bytes.
    Cut(Range<usize>),
}

impl Fate {
    /// What is left of an event, in two parts.
    fn parts<'a>(&self, raw: &'a [u8]) -> [&'a [u8]; 2] {
        match self {
            Self::Keep => [raw, &[]],
            Self::Drop => [&[], &[]],
            Self::Cut(range) => [raw.get(..range.start).unwrap_or(raw), raw.get(range.end..).unwrap_or_default()],
        }
    }
}

/// Collects what is forwarded of one chunk, and copies only when it is not a prefix of the chunk itself.
struct Output<'a> {
    chunk: &'a [u8],
    /// Bytes of the chunk that are forwarded as they stand, while nothing else is.
    kept: usize,
    copied: Option<Vec<u8>>,
}

impl<'a> Output<'a> {
    fn new(chunk: &'a [u8], held_before: bool) -> Self {
        Self { chunk, kept: 0, copied: held_before.then(Vec::new) }
    }

    fn event(&mut self, event: Event<'_>, fate: &Fate) {
        match fate {
            Fate::Keep => self.keep(event.raw()),
            Fate::Drop => self.skip(event.raw()),
            Fate::Cut(_) => {
                let copy = self.copy();
                fate.parts(event.raw()).iter().for_each(|part| copy.extend_from_slice(part));
            }
        }
    }

    fn keep(&mut self, raw: &[u8]) {
        match &mut self.copied {
            Some(copied) => copied.extend_from_slice(raw),
            None => self.kept += raw.len(),
        }
    }

    fn skip(&mut self, raw: &[u8]) {
        if !raw.is_empty() {
            self.copy();
        }
    }

    fn copy(&mut self) -> &mut Vec<u8> {
        let kept = self.chunk.get(..self.kept).unwrap_or_default();
        self.copied.get_or_insert_with(|| {
            let mut copy = Vec::with_capacity(self.chunk.len());
            copy.extend_from_slice(kept);
            copy
        })
    }

    fn finish(self) -> Forward<'a> {
        match self.copied {
            Some(copied) if copied == self.chunk => Forward::Unchanged,
            Some(copied) => Forward::Replace(Cow::Owned(copied)),
            None if self.kept == self.chunk.len() => Forward::Unchanged,
            None => Forward::Replace(Cow::Borrowed(self.chunk.get(..self.kept).unwrap_or_default())),
        }
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
struct Meter {
    reported: Option<Reported>,
    /// Text came after the last usage, which therefore does not count it.
    outdated: bool,
    /// Bytes of the assistant's text and calls.
    text: u64,
    /// Bytes of its reasoning.
    reasoning: u64,
    done: bool,
    finished: bool,
    error: bool,
}

impl Meter {
    /// Reads a whole event.
    fn event(&mut self, event: Event<'_>, verbatim: bool) -> Fate {
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
    fn last(&mut self, event: Event<'_>) -> Option<Fate> {
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

    fn ending(&self) -> Ending {
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
    fn usage(&self, input_estimate: u64) -> (Usage, Source) {
        let reported = self.reported.unwrap_or_default();
        let mut usage = reported.normalise();
        let has_output = reported.has_output() && !self.outdated;
        if reported.has_input() && has_output {
            return (usage, Source::Reported);
        }
        let answered = self.text > 0 || self.reasoning > 0;
        if self.reported.is_none() && self.error && !answered {
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

#[cfg(test)]
mod tests;
