//! The adapter: the filter in the router's upstream chain, once per attempt. What a provider is sent, and what it says.

use std::rc::Rc;

use sluicegate_core::exchange::{Exchange, ReplyBody, ReplyHead, log};
use sluicegate_core::json::Edits;
use sluicegate_core::plugin::Attached;
use sluicegate_core::policy::{Position, names};
use sluicegate_core::refusal::Refusal;

use crate::attached;
use crate::fault::{self, Place};
use crate::host::{self, Buffer, Map};
use crate::reply::LocalReply;
use crate::vm::{Action, Shared};

/// One attempt.
#[derive(Debug, Default)]
pub struct Adapter {
    /// The gate context whose exchange this is an attempt of.
    gate: Option<u32>,
    /// Which one, from 0.
    attempt: usize,
    /// Not written into the body yet.
    edits: Option<Edits>,
    /// The reply is kept back until it is whole; so much of it has been read.
    held: Option<usize>,
    /// It is paused at its headers, to find out whether a reply can be held.
    probing: bool,
    /// Where the router is somebody else's.
    attached: Option<Rc<Attached>>,
}

impl Adapter {
    pub fn new(attached: Option<Rc<Attached>>) -> Self {
        Self { attached, ..Self::default() }
    }

    pub fn request_headers(&mut self, shared: &mut Shared) -> Action {
        fault::at(Place::AdapterHeaders);
        match self.begin(shared) {
            Ok(()) if self.probing => Action::Pause,
            Ok(()) => Action::Continue,
            Err(refusal) => {
                self.refuse(refusal, shared);
                Action::Pause
            }
        }
    }

    /// Nothing reaches a provider but what the gate of this very VM admitted: the filter state names its exchange.
    fn begin(&mut self, shared: &mut Shared) -> Result<(), Refusal> {
        let state = host::property(&[names::FILTER_STATE_NAME]).ok().flatten().unwrap_or_default();
        if let Some(attached) = &self.attached
            && attached::is_theirs(attached, &state)
        {
            return Ok(());
        }
        let gate = self.admitted(&state, shared)?;
        let now = host::now();
        if let Some(missing) = shared.adapter_pauses.missing(now.0) {
            self.gate = Some(gate);
            return Err(missing);
        }
        let seq = shared.next_seq();
        let Some(exchange) = shared.exchanges.get_mut(&gate) else { return Err(UNADMITTED) };
        self.gate = Some(gate);
        let position = match &self.attached {
            None => chosen_position().ok_or(Refusal::Internal { what: "the chosen host names no position" })?,
            Some(_) => attached::position(exchange)?,
        };
        let authorization = shared.credentials.authorization(position.credential)?;
        self.attempt = exchange.attempts();
        let upstream = exchange.begin(position, seq, now)?;
        write_request(&upstream, authorization, self.attached.is_some())
            .map_err(|_| Refusal::Internal { what: "the attempt's headers are not writable" })?;
        self.edits = (!upstream.edits.is_empty()).then_some(upstream.edits);
        // A reply may be held, which is a pause at headers: whether that works is better known before anything is sent.
        self.probing = !shared.adapter_pauses.proven();
        shared.adapter_pauses.begin(gate);
        Ok(())
    }

    /// The gate context that has admitted the request with this filter state.
    fn admitted(&self, state: &[u8], shared: &Shared) -> Result<u32, Refusal> {
        let without = |option| Err(Refusal::Misconfigured { option });
        match log::admitted_origin(state) {
            Some(origin) if origin.vm == shared.vm => Ok(origin.context),
            Some(_) if !shared.has_gate => without("the same vm_id and code in both entries"),
            None if !shared.has_gate || self.attached.is_some() => without("the gate in the listener's http_filters"),
            Some(_) | None => Err(UNADMITTED),
        }
    }

    /// The body arrives whole, but for a first callback without its end.
    pub fn request_body(&mut self, size: usize, end: bool, shared: &mut Shared) -> Action {
        fault::at(Place::AdapterBody);
        self.body_came(shared);
        let Some(edits) = self.edits.take() else { return Action::Continue };
        let prefix = edits.prefix_len();
        if size < prefix {
            if end {
                self.refuse(Refusal::Internal { what: "the body is shorter than it was" }, shared);
            } else {
                self.edits = Some(edits);
            }
            return Action::Pause;
        }
        let bytes = host::buffer(Buffer::RequestBody, 0, prefix).unwrap_or_default();
        let written = edits
            .rewrite(&bytes)
            .is_some_and(|instead| host::replace_prefix(Buffer::RequestBody, prefix, &instead).is_ok());
        if !written {
            self.refuse(Refusal::Internal { what: "the body is not writable" }, shared);
            return Action::Pause;
        }
        Action::Continue
    }

    /// The body's end can come in trailers: one that is still to be edited is shorter than it was.
    pub fn request_trailers(&mut self, shared: &mut Shared) -> Action {
        self.body_came(shared);
        if self.edits.take().is_none() {
            return Action::Continue;
        }
        self.refuse(Refusal::Internal { what: "the body is shorter than it was" }, shared);
        Action::Pause
    }

    fn body_came(&mut self, shared: &mut Shared) {
        if std::mem::take(&mut self.probing) {
            shared.adapter_pauses.works();
        }
    }

    pub fn response_headers(&mut self, end: bool, shared: &mut Shared) -> Action {
        fault::at(Place::ResponseHeaders);
        let Some(exchange) = self.exchange(shared) else { return Action::Continue };
        let Ok(headers) = host::headers(Map::ResponseHeaders) else { return Action::Continue };
        let mut head = ReplyHead { status: 0, content_type: b"", content_length: None, encoded: false, end };
        let mut not_for_clients: Vec<&[u8]> = Vec::new();
        for (name, value) in headers.iter() {
            match name {
                b":status" => head.status = host::parse(value).unwrap_or(0),
                b"content-type" => head.content_type = value,
                b"content-length" => head.content_length = host::parse(value),
                b"content-encoding" => head.encoded = !value.eq_ignore_ascii_case(b"identity"),
                // What is ours to say, or the provider's business with us.
                b"set-cookie" | b"openai-organization" | b"openai-project" => not_for_clients.push(name),
                _ if name.starts_with(b"x-sluicegate-") || name.starts_with(b"x-envoy-") => not_for_clients.push(name),
                _ => {}
            }
        }
        match exchange.reply_head(head) {
            ReplyBody::Pass => {
                label_reply(exchange, &not_for_clients);
                Action::Continue
            }
            ReplyBody::Stream => {
                not_for_clients.push(b"content-length");
                label_reply(exchange, &not_for_clients);
                Action::Continue
            }
            ReplyBody::Hold => {
                label_reply(exchange, &not_for_clients);
                self.held = Some(0);
                Action::Pause
            }
            ReplyBody::Refuse(refusal) => {
                LocalReply::refusal(&refusal, exchange.ticket.operation).send();
                shared.refused(&refusal);
                Action::Pause
            }
        }
    }

    /// While a reply is held `size` counts all of it, otherwise what is new.
    pub fn response_body(&mut self, size: usize, end: bool, shared: &mut Shared) -> Action {
        fault::at(Place::ResponseBody);
        let held = self.held;
        let Some(exchange) = self.exchange(shared) else { return Action::Continue };
        let from = held.unwrap_or(0);
        let now = host::now();
        let bytes = match size.saturating_sub(from) {
            0 => Vec::new(),
            new => host::buffer(Buffer::ResponseBody, from, new).unwrap_or_default(),
        };
        if let Some(instead) = exchange.reply_chunk(&bytes, end, now) {
            // Should the host refuse, the bytes pass as they came.
            let _ = host::replace_prefix(Buffer::ResponseBody, size, &instead);
        }
        match held {
            Some(_) if end => {
                label_cost(exchange);
                self.held = None;
                Action::Continue
            }
            Some(_) => {
                self.held = Some(size);
                Action::Pause
            }
            None => Action::Continue,
        }
    }

    pub fn response_trailers(&mut self, shared: &mut Shared) -> Action {
        let held = self.held.take();
        if let Some(exchange) = self.exchange(shared) {
            exchange.reply_chunk(b"", true, host::now());
            if held.is_some() {
                label_cost(exchange);
            }
        }
        Action::Continue
    }

    /// The attempt is over. Whether one without a reply was on a connection is known only now, and asked only then.
    pub fn done(&self, shared: &mut Shared) {
        let attempt = self.attempt;
        if let Some(exchange) = self.exchange(shared)
            && exchange.waits(attempt)
            && host::never_connected()
        {
            exchange.never_sent(attempt);
        }
    }

    fn exchange<'a>(&self, shared: &'a mut Shared) -> Option<&'a mut Exchange> {
        shared.exchanges.get_mut(&self.gate?)
    }

    /// Ends the request: a local reply of an upstream filter is not retried.
    fn refuse(&mut self, refusal: Refusal, shared: &mut Shared) {
        let operation = match self.exchange(shared) {
            Some(exchange) => {
                exchange.refuse(refusal.clone());
                exchange.ticket.operation
            }
            None => shared.ticket(host::now()).operation,
        };
        LocalReply::refusal(&refusal, operation).send();
        shared.refused(&refusal);
    }
}

const UNADMITTED: Refusal = Refusal::Internal { what: "a request reached the router without being admitted" };

/// Which position's host Envoy chose: its cluster's metadata says.
fn chosen_position() -> Option<Position> {
    let path = ["xds", "upstream_host_metadata", "filter_metadata", names::META_NAMESPACE, names::META_POSITION];
    names::parse_position(&host::property(&path).ok()??)
}

/// The header map is shared between attempts, so each sets all that is the provider's.
fn write_request(
    upstream: &sluicegate_core::exchange::Upstream<'_>,
    authorization: Option<&[u8]>,
    strip: bool,
) -> host::HostResult<()> {
    let map = Map::RequestHeaders;
    if strip {
        attached::strip()?;
    }
    host::set_header(map, b":authority", upstream.authority.as_bytes())?;
    host::set_header(map, b":path", upstream.path.as_bytes())?;
    host::set_header(map, b"content-length", upstream.content_length.to_string().as_bytes())?;
    // What is compressed cannot be metered.
    host::set_header(map, b"accept-encoding", b"identity")?;
    match authorization {
        Some(value) => host::set_header(map, b"authorization", value)?,
        None => host::remove_header(map, b"authorization")?,
    }
    if !strip {
        for name in upstream.remove {
            host::remove_header(map, name.as_bytes())?;
        }
    }
    Ok(())
}

/// Tells the client what answered, and nothing else.
fn label_reply(exchange: &Exchange, not_for_clients: &[&[u8]]) {
    let map = Map::ResponseHeaders;
    let ticket = &exchange.ticket;
    let backend = exchange.position().and_then(|p| exchange.policy.backend(p.backend));
    let operation = ticket.operation.to_string();
    let (key, attempts) = (ticket.identity.key.to_string(), exchange.attempts().to_string());
    let headers: [(&str, &str); 7] = [
        (names::REQUEST_ID_HEADER, &operation),
        // 0 where there was none: the holder of a token.
        ("x-sluicegate-key-id", &key),
        ("x-sluicegate-route", ticket.route),
        // The client named the model itself: no rule chose it.
        ("x-sluicegate-rule", "exact"),
        ("x-sluicegate-model", exchange.model_name()),
        ("x-sluicegate-backend", backend.map_or("", |b| &b.name)),
        ("x-sluicegate-attempts", &attempts),
    ];
    // A header that cannot be written is no reason to keep an answer from a client.
    for name in not_for_clients {
        let _ = host::remove_header(map, name);
    }
    for (name, value) in headers {
        let _ = host::set_header(map, name.as_bytes(), value.as_bytes());
    }
}

/// Of a reply that is whole. A model without a price has no cost to tell.
fn label_cost(exchange: &Exchange) {
    if let Some(cost) = exchange.cost() {
        let _ = host::set_header(Map::ResponseHeaders, b"x-sluicegate-cost", cost.to_string().as_bytes());
    }
}
