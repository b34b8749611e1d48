//! One attempt at one backend: what is sent, and what becomes of the reply.

use super::{Exchange, Mono};
use crate::dialect::openai::error::error_body;
use crate::dialect::openai::reply::Reply as Whole;
use crate::dialect::openai::routes::upstream_path;
use crate::dialect::openai::stream::{Ending, Forward, Stream};
use crate::dialect::openai::{estimate, request};
use crate::json::Edits;
use crate::noun::{Source, Usage};
use crate::policy::Position;
use crate::refusal::Refusal;

/// A reply that announces at most this many bytes is kept back until it is whole, so that its headers can say what it
/// cost; a longer one passes as it comes.
const HOLD_BYTES: u64 = 1 << 20;

/// One attempt and what is known of its reply so far.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Its record's number, minted before it was sent.
    pub seq: u64,
    pub position: Position,
    pub sent: Mono,
    /// No connection took it, so it cost nothing.
    pub never_sent: bool,
    /// What the provider answered; 0 while it has not.
    pub upstream_status: u32,
    pub first_byte: Option<Mono>,
    pub last_byte: Option<Mono>,
    /// Its headers went on to the client: what comes now is what the client gets.
    passed: bool,
    reply: Reply,
}

#[derive(Debug)]
enum Reply {
    /// Nothing yet.
    Waiting,
    /// An answer that is no success: nothing ran that could be billed.
    Error {
        whole: bool,
    },
    Whole(Whole),
    Stream(Stream),
    /// Compressed, though asked not to be: it passes unread.
    Opaque {
        bytes: u64,
    },
    /// It came to its end.
    Ended {
        usage: Usage,
        source: Source,
        end: End,
    },
}

/// How a reply ended whose last byte came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// As one of its kind does.
    Whole,
    /// With the provider's own word that it failed.
    Failed,
    /// In good order as far as the connection goes, but in the middle.
    Cut,
}

/// What the adapter is to send to the provider.
#[derive(Debug)]
pub struct Upstream<'a> {
    pub authority: &'a str,
    pub path: String,
    /// Of the body with its edits, in bytes.
    pub content_length: u64,
    /// Changes of the body; empty when the bytes are right as they are.
    pub edits: Edits,
    /// Client headers to remove; empty after the first attempt, which removed them.
    pub remove: &'a [String],
}

/// What a reply's headers say.
#[derive(Clone, Copy, Debug)]
pub struct ReplyHead<'a> {
    pub status: u32,
    pub content_type: &'a [u8],
    pub content_length: Option<u64>,
    /// The body is compressed.
    pub encoded: bool,
    /// No body follows.
    pub end: bool,
}

/// What is to become of a reply's body.
#[derive(Debug, PartialEq, Eq)]
pub enum ReplyBody {
    /// Goes on as it comes, each chunk through [`Exchange::reply_chunk`].
    Pass,
    /// The same, and it may change its length.
    Stream,
    /// Is kept back until it is whole.
    Hold,
    /// The client gets this instead.
    Refuse(Refusal),
}

impl Exchange {
    /// Begins the next attempt, at the position whose cluster Envoy chose. The first attempt's number was minted when the
    /// request came; a further one's is `seq`.
    ///
    /// # Errors
    /// A position that is not in this exchange's list.
    pub fn begin(&mut self, position: Position, seq: u64, now: Mono) -> Result<Upstream<'_>, Refusal> {
        if !self.positions.contains(&position) {
            return Err(Refusal::Internal { what: "a position outside the admitted list was reached" });
        }
        let Some(backend) = self.policy.backend(position.backend) else {
            return Err(Refusal::Internal { what: "the policy has lost a backend" });
        };
        let Some(path) = upstream_path(&backend.path, &self.path) else {
            return Err(Refusal::Internal { what: "an admitted path has no place at the provider" });
        };
        let first = self.attempts.is_empty();
        self.attempts.push(Attempt {
            seq: if first { self.ticket.seq } else { seq },
            position,
            sent: now,
            never_sent: false,
            upstream_status: 0,
            first_byte: None,
            last_byte: None,
            passed: false,
            reply: Reply::Waiting,
        });
        let edits = request::edits(&self.fields, &backend.model);
        Ok(Upstream {
            authority: &backend.authority,
            path,
            content_length: self.body_bytes.saturating_add_signed(edits.size_change()),
            edits,
            remove: if first { &self.private } else { &[] },
        })
    }

    /// The last attempt's reply began.
    pub fn reply_head(&mut self, head: ReplyHead<'_>) -> ReplyBody {
        let Some(attempt) = self.attempts.last_mut() else {
            return ReplyBody::Refuse(Refusal::Internal { what: "a reply came without an attempt" });
        };
        attempt.upstream_status = head.status;
        if matches!(head.status, 401 | 403) {
            attempt.reply = Reply::Error { whole: true };
            let refusal = Refusal::ProviderRefusedCredential { status: head.status };
            self.refusal = Some(refusal.clone());
            return ReplyBody::Refuse(refusal);
        }
        if head.status == 101 {
            // Nobody asked for another protocol: what follows would be no reply to anything.
            attempt.reply = Reply::Error { whole: true };
            self.refusal = Some(Refusal::UpstreamUnavailable);
            return ReplyBody::Refuse(Refusal::UpstreamUnavailable);
        }
        attempt.passed = true;
        if !(200..300).contains(&head.status) || head.end {
            attempt.reply = Reply::Error { whole: head.end };
            return ReplyBody::Pass;
        }
        if head.encoded {
            attempt.reply = Reply::Opaque { bytes: 0 };
            return ReplyBody::Pass;
        }
        if is_event_stream(head.content_type) {
            attempt.reply = Reply::Stream(Stream::new(self.fields.asked_usage));
            return ReplyBody::Stream;
        }
        attempt.reply = Reply::Whole(Whole::new(self.operation));
        match head.content_length {
            Some(length) if length <= HOLD_BYTES => {
                attempt.passed = false;
                ReplyBody::Hold
            }
            _ => ReplyBody::Pass,
        }
    }

    /// The next bytes of the last attempt's reply; `end` with its last ones. Returns what goes to the client in their
    /// place, `None` for the bytes as they are.
    pub fn reply_chunk(&mut self, bytes: &[u8], end: bool, now: Mono) -> Option<Vec<u8>> {
        let input_estimate = self.input_estimate();
        let attempt = self.attempts.last_mut()?;
        if !bytes.is_empty() {
            attempt.first_byte.get_or_insert(now);
            attempt.last_byte = Some(now);
        }
        let instead = match &mut attempt.reply {
            Reply::Whole(reply) => {
                reply.push(bytes);
                None
            }
            Reply::Stream(stream) => match stream.push(bytes) {
                Forward::Unchanged => None,
                Forward::Replace(instead) => Some(instead.into_owned()),
            },
            Reply::Error { whole } => {
                *whole |= end;
                return None;
            }
            Reply::Opaque { bytes: seen } => {
                *seen = seen.saturating_add(bytes.len() as u64);
                None
            }
            Reply::Waiting | Reply::Ended { .. } => return None,
        };
        if !end {
            return instead;
        }
        attempt.passed = true;
        let last_words = attempt.settle(input_estimate);
        if last_words.is_empty() {
            return instead;
        }
        let mut whole = instead.unwrap_or_else(|| bytes.to_vec());
        whole.extend(last_words);
        Some(whole)
    }

    /// The reply that the client gets is a provider's, or ours already; where not, Envoy answers by itself.
    pub fn replied(&self) -> bool {
        self.refusal.is_some() || self.attempts.last().is_some_and(|a| a.passed)
    }

    /// The client gets this in place of a reply.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.refusal.get_or_insert(refusal);
    }

    /// The last attempt's reply came to its end; where not, Envoy's response code details say why.
    pub fn ended(&self) -> bool {
        self.attempts.last().is_some_and(|a| a.end().is_some())
    }

    /// Nothing of this attempt's reply has come. Attempts count from 0.
    pub fn waits(&self, attempt: usize) -> bool {
        self.attempts.get(attempt).is_some_and(|a| matches!(a.reply, Reply::Waiting))
    }

    /// This attempt has ended without ever being on a connection.
    pub fn never_sent(&mut self, attempt: usize) {
        if let Some(attempt) = self.attempts.get_mut(attempt) {
            attempt.never_sent = true;
        }
    }

    /// How many attempts began.
    pub fn attempts(&self) -> usize {
        self.attempts.len()
    }

    /// The model the client asked for: one of the policy's, so it may label metrics.
    pub fn model_name(&self) -> &str {
        &self.ticket.requested_model
    }

    /// The position of the last attempt.
    pub fn position(&self) -> Option<Position> {
        self.attempts.last().map(|a| a.position)
    }

    /// Input tokens, guessed from the body's size.
    pub(super) fn input_estimate(&self) -> u64 {
        estimate::estimate_input(self.body_bytes)
    }
}

impl Attempt {
    /// The reply is over: fixes what it used. Returns what the client still has to get: held bytes, and where the stream
    /// was cut in the middle the dialect's error event, because a clean end would be a lie.
    pub fn settle(&mut self, input_estimate: u64) -> Vec<u8> {
        match std::mem::replace(&mut self.reply, Reply::Waiting) {
            Reply::Whole(reply) => {
                let ended = reply.finish(input_estimate);
                let end = if ended.complete { End::Whole } else { End::Cut };
                self.reply = Reply::Ended { usage: ended.usage, source: ended.source, end };
                Vec::new()
            }
            Reply::Stream(stream) => {
                let ended = stream.finish(input_estimate);
                let end = match ended.ending {
                    Ending::Complete => End::Whole,
                    Ending::Failed => End::Failed,
                    Ending::Cut => End::Cut,
                };
                self.reply = Reply::Ended { usage: ended.usage, source: ended.source, end };
                match end {
                    End::Cut => [ended.rest.as_slice(), &ended.error_event(&cut_body())].concat(),
                    End::Whole | End::Failed => ended.rest,
                }
            }
            Reply::Opaque { bytes } => {
                let usage =
                    Usage { input: input_estimate, output: estimate::estimate_output(bytes), ..Usage::default() };
                self.reply = Reply::Ended { usage, source: Source::Estimated, end: End::Whole };
                Vec::new()
            }
            other => {
                self.reply = other;
                Vec::new()
            }
        }
    }

    /// What it used, once [`Self::settle`] has been called or the reply was none. `input_estimate` stands in where a
    /// request that ran got no reply.
    pub fn usage(&self, input_estimate: u64) -> (Usage, Source) {
        match &self.reply {
            Reply::Ended { usage, source, .. } => (*usage, *source),
            Reply::Stream(stream) => stream.usage(input_estimate),
            Reply::Waiting | Reply::Whole(_) | Reply::Opaque { .. } if !self.never_sent => {
                (Usage { input: input_estimate, ..Usage::default() }, Source::Estimated)
            }
            Reply::Waiting | Reply::Whole(_) | Reply::Opaque { .. } | Reply::Error { .. } => {
                (Usage::default(), Source::None)
            }
        }
    }

    /// How the reply ended, if its last byte came.
    pub fn end(&self) -> Option<End> {
        match self.reply {
            Reply::Ended { end, .. } => Some(end),
            Reply::Error { whole: true } => Some(End::Failed),
            Reply::Error { whole: false }
            | Reply::Waiting
            | Reply::Whole(_)
            | Reply::Stream(_)
            | Reply::Opaque { .. } => None,
        }
    }
}

fn cut_body() -> Vec<u8> {
    error_body("The provider ended this answer in the middle. Try again.", "server_error", None, "upstream_cut")
}

fn is_event_stream(content_type: &[u8]) -> bool {
    const EVENT_STREAM: &[u8] = b"text/event-stream";
    content_type.get(..EVENT_STREAM.len()).is_some_and(|start| start.eq_ignore_ascii_case(EVENT_STREAM))
}
