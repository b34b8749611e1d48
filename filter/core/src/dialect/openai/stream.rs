//! A chat stream on its way to the client: metered, and without what only the gateway asked for.

mod forward;
mod meter;

use crate::noun::{Source, Usage};
use crate::sse::{Piece, Splitter};

pub use forward::Forward;
use forward::{Fate, Output};
use meter::Meter;

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
        self.meter.answered()
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

#[cfg(test)]
mod tests;
