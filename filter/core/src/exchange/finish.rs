//! The end of an admitted request: what goes into the ledger.

use super::attempt::{Attempt, End};
use super::{Exchange, Mono};
use crate::noun::{Nano, Source, Usage};
use crate::proto::dataplane as wire;

/// What the gate knows when a request is over.
#[derive(Clone, Copy, Debug)]
pub struct Closing<'a> {
    pub now: Mono,
    /// Envoy's response code details; needed only where [`Exchange::ended`] is false.
    pub details: &'a [u8],
}

impl Exchange {
    /// The plan, as it goes into filter state at admission: what is booked should the VM die.
    pub fn plan(&self) -> wire::Record {
        wire::Record {
            attempt: 1,
            last: true,
            ended: wire::Ended::Trapped.into(),
            source: wire::Source::Estimated.into(),
            usage: Some(Usage { input: self.input_estimate(), ..Usage::default() }.to_wire()),
            backend: self.positions.first().map_or(0, |p| p.backend),
            credential: self.positions.first().map_or(0, |p| p.credential),
            ..self.record()
        }
    }

    /// One record per attempt; one, too, where no attempt began.
    pub fn close(&mut self, closing: Closing<'_>) -> Vec<wire::Record> {
        let how = self.how_it_ended(closing.details);
        let input_estimate = self.input_estimate();
        for attempt in &mut self.attempts {
            // There is no one left to give its last words to.
            attempt.settle(input_estimate);
        }
        let mut records: Vec<wire::Record> = match self.attempts.split_last() {
            None => vec![wire::Record {
                cost_nano: Some(0),
                gateway_us: closing.now.micros_since(self.admitted),
                ..self.record()
            }],
            Some((last, earlier)) => {
                // Envoy went on after these: the client saw nothing of them.
                let ends = self.attempts.iter().skip(1).map(|next| next.sent);
                let earlier = earlier.iter().zip(ends).map(|(attempt, end)| wire::Record {
                    ended: match attempt.upstream_status {
                        0 if attempt.never_sent => wire::Ended::Unreached,
                        0 => wire::Ended::UpstreamCut,
                        _ => wire::Ended::ProviderError,
                    }
                    .into(),
                    ..self.attempt_record(attempt, end)
                });
                let last = self.attempt_record(last, closing.now);
                earlier.chain([last]).collect()
            }
        };
        for (number, record) in (1..).zip(&mut records) {
            record.attempt = number;
        }
        if let Some(record) = records.last_mut() {
            record.last = true;
            record.status = self.client_status();
            record.refusal = self.refusal.as_ref().map(|r| r.code().to_owned()).unwrap_or_default();
            record.ended = how.into();
            record.total_us = closing.now.micros_since(self.ticket.started);
        }
        records
    }

    /// What the last attempt's reply cost so far; `None` where the backend has no price.
    pub fn cost(&self) -> Option<Nano> {
        let attempt = self.attempts.last()?;
        let (usage, source) = attempt.usage(self.input_estimate());
        self.price(attempt, &usage, source)
    }

    /// The status the client got; 0 where it left before.
    pub fn client_status(&self) -> u32 {
        match (&self.refusal, self.attempts.last()) {
            (Some(refusal), _) => refusal.status(),
            (None, Some(attempt)) => attempt.upstream_status,
            (None, None) => 0,
        }
    }

    fn price(&self, attempt: &Attempt, usage: &Usage, source: Source) -> Option<Nano> {
        match source {
            Source::None => Some(Nano(0)),
            Source::Reported | Source::Estimated => {
                self.policy.backend(attempt.position.backend)?.price.as_ref()?.cost(usage)
            }
        }
    }

    fn how_it_ended(&self, details: &[u8]) -> wire::Ended {
        let last = self.attempts.last();
        match last.and_then(Attempt::end) {
            Some(End::Whole) => wire::Ended::Complete,
            Some(End::Failed) => wire::Ended::ProviderError,
            Some(End::Cut) => wire::Ended::UpstreamCut,
            None if is_client(details) => wire::Ended::ClientGone,
            None if is_timeout(details) => wire::Ended::Timeout,
            None if last.is_none_or(|a| a.never_sent) => wire::Ended::Unreached,
            None => wire::Ended::UpstreamCut,
        }
    }

    fn attempt_record(&self, attempt: &Attempt, end: Mono) -> wire::Record {
        let (usage, source) = attempt.usage(self.input_estimate());
        // Ours: from the decision to the first provider, and from a provider's last byte to the end.
        let first = attempt.seq == self.ticket.seq;
        let (start, before) = match first {
            true => (self.ticket.started, attempt.sent.micros_since(self.admitted)),
            false => (attempt.sent, 0),
        };
        let after = attempt.last_byte.map_or(0, |last| end.micros_since(last));
        wire::Record {
            seq: attempt.seq,
            backend: attempt.position.backend,
            credential: attempt.position.credential,
            usage: Some(usage.to_wire()),
            source: source.to_wire().into(),
            cost_nano: self.price(attempt, &usage, source).map(|c| c.0),
            upstream_status: attempt.upstream_status,
            first_token_us: attempt.first_byte.map_or(0, |first| first.micros_since(self.admitted)),
            total_us: end.micros_since(start),
            gateway_us: before.saturating_add(after),
            ..self.record()
        }
    }

    fn record(&self) -> wire::Record {
        wire::Record {
            model: self.model,
            policy_revision: self.policy.revision,
            stream: self.fields.stream,
            ..self.ticket.record(self.admitted_ns)
        }
    }
}

// Envoy's response code details, a stable list:
// https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_conn_man/response_code_details

fn contains(details: &[u8], what: &str) -> bool {
    memchr::memmem::find(details, what.as_bytes()).is_some()
}

/// A reset of the client's HTTP/2 stream can leave no details at all; the upstream's always has some.
fn is_client(details: &[u8]) -> bool {
    details.is_empty()
        || details.starts_with(b"downstream_")
        || details.starts_with(b"http1.")
        || details.starts_with(b"http2.")
}

fn is_timeout(details: &[u8]) -> bool {
    contains(details, "timeout") || contains(details, "max_duration")
}
