//! The gate: the filter in the listener's chain. Who asks, for what, and may they; at the end, what it came to.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use sluicegate_core::dialect::openai::models::{list_body, model_body};
use sluicegate_core::dialect::openai::routes::{Route, route};
use sluicegate_core::dialect::openai::{self, Operation};
use sluicegate_core::exchange::{Closing, Head, Identity, Moment, Reading, Ticket, Turned, label, log};
use sluicegate_core::policy::{Policy, names};
use sluicegate_core::proto::dataplane::Record;
use sluicegate_core::refusal::Refusal;
use sluicegate_core::state::CompiledProfile;

use crate::body;
use crate::fault::{self, Place};
use crate::host::{self, Map};
use crate::reply::LocalReply;
use crate::vm::{Action, Shared};

/// One client request, as the gate sees it.
#[derive(Debug, Default)]
pub struct Gate {
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    /// Before its headers, or between two stages.
    #[default]
    New,
    /// Its key is good; its body is coming in.
    Reading(Box<Reading>),
    /// All that is to come of it has come, but this VM has no policy yet. The root resumes it.
    Parked(Waiting),
    /// Its `Exchange` is in [`Shared::exchanges`] under this context's id.
    Admitted,
    /// Answered by the gate; the record, if there is one, goes to the ledger.
    Answered(Option<Box<Record>>),
}

/// What is decided once there is a policy.
#[derive(Debug)]
enum Waiting {
    Body(Box<Reading>),
    Models(Box<Listing>),
}

/// A request for the models this key may use, or for one of them.
#[derive(Debug)]
struct Listing {
    ticket: Ticket,
    name: Option<String>,
    profile: Rc<CompiledProfile>,
}

enum Arrival {
    Body(Box<Reading>),
    Models(Box<Listing>),
    Answer(LocalReply),
}

impl Gate {
    pub fn request_headers(&mut self, context: u32, end: bool, shared: &mut Shared) -> Action {
        match arrive(end, shared) {
            Ok(Arrival::Body(reading)) => self.stage = Stage::Reading(reading),
            Ok(Arrival::Models(listing)) => self.decide_or_park(context, Waiting::Models(listing), shared),
            Ok(Arrival::Answer(reply)) => {
                reply.send();
                self.stage = Stage::Answered(None);
            }
            Err(turned) => self.turn_away(*turned, shared),
        }
        Action::Pause
    }

    /// `size` counts all that is buffered: while a request is paused the host keeps what came before.
    pub fn request_body(&mut self, context: u32, size: usize, end: bool, shared: &mut Shared) -> Action {
        fault::at(Place::RequestBody);
        match std::mem::take(&mut self.stage) {
            Stage::Reading(reading) => match body::read(reading, size) {
                Ok(reading) if end => self.admit(context, reading, shared),
                Ok(reading) => self.stage = Stage::Reading(reading),
                Err(turned) => self.turn_away(*turned, shared),
            },
            other => self.stage = other,
        }
        self.request_action()
    }

    /// The end of the stream can come in trailers; admission happens here then.
    pub fn request_trailers(&mut self, context: u32, shared: &mut Shared) -> Action {
        match std::mem::take(&mut self.stage) {
            Stage::Reading(reading) => self.admit(context, reading, shared),
            other => self.stage = other,
        }
        self.request_action()
    }

    /// A request that waits is answered with `Pause` at each of its callbacks: `Continue` would release it.
    fn request_action(&self) -> Action {
        match self.stage {
            Stage::Admitted => Action::Continue,
            Stage::New | Stage::Reading(_) | Stage::Parked(_) | Stage::Answered(_) => Action::Pause,
        }
    }

    /// The body is whole.
    fn admit(&mut self, context: u32, reading: Box<Reading>, shared: &mut Shared) {
        let reading = match body::decode(reading) {
            Ok(reading) => reading,
            Err(turned) => return self.turn_away(*turned, shared),
        };
        self.decide_or_park(context, Waiting::Body(reading), shared);
    }

    fn decide_or_park(&mut self, context: u32, waiting: Waiting, shared: &mut Shared) {
        if shared.policy.is_none() {
            shared.park(context);
            self.stage = Stage::Parked(waiting);
        } else {
            self.decide(context, waiting, shared);
        }
    }

    /// For the root, which has made this context the effective one: there is a policy now, or no more time. Returns
    /// whether the request is to be resumed.
    pub fn unpark(&mut self, context: u32, shared: &mut Shared) -> bool {
        match std::mem::take(&mut self.stage) {
            Stage::Parked(waiting) => {
                self.decide(context, waiting, shared);
                matches!(self.stage, Stage::Admitted)
            }
            other => {
                self.stage = other;
                false
            }
        }
    }

    /// Happens once to a request, and nothing else lets one through.
    fn decide(&mut self, context: u32, waiting: Waiting, shared: &mut Shared) {
        let Some(policy) = shared.policy.clone() else {
            let ticket = match waiting {
                Waiting::Body(reading) => reading.ticket,
                Waiting::Models(listing) => listing.ticket,
            };
            return self.turn_away(Turned { refusal: Refusal::NotReady, ticket }, shared);
        };
        let reading = match waiting {
            Waiting::Body(reading) => reading,
            Waiting::Models(listing) => return self.list(*listing, &policy, shared),
        };
        let now = host::now();
        let moment = Moment { now, now_ns: shared.control_plane_time(now), random: shared.random() };
        let exchange = match reading.admit(&policy, moment) {
            Ok(exchange) => exchange,
            Err(turned) => return self.turn_away(*turned, shared),
        };
        fault::at(Place::Admit);
        let plan = shared.origin(context).map(|origin| log::admitted(origin, &exchange.plan()));
        if !plan.is_some_and(|plan| mark(&plan, &exchange.cluster, exchange.positions.len()).is_ok()) {
            let refusal = Refusal::Internal { what: "the request could not be marked as admitted" };
            return self.turn_away(Turned { refusal, ticket: exchange.ticket }, shared);
        }
        shared.exchanges.insert(context, exchange);
        self.stage = Stage::Admitted;
    }

    /// Nothing runs, so nothing is booked.
    fn list(&mut self, listing: Listing, policy: &Policy, shared: &mut Shared) {
        match models(listing, policy) {
            Ok(reply) => {
                reply.send();
                self.stage = Stage::Answered(None);
            }
            Err(turned) => self.turn_away(*turned, shared),
        }
    }

    fn turn_away(&mut self, Turned { refusal, ticket }: Turned, shared: &mut Shared) {
        LocalReply::refusal(&refusal, ticket.operation).send();
        let now = host::now();
        let record = ticket.close(Some(&refusal), now, shared.control_plane_time(now));
        shared.metrics.refused(&refusal);
        // What has no owner is not booked without end: a flood of bad keys is counted, and only a few are kept.
        let keep = ticket.identity != Identity::default() || shared.may_book_stranger(now);
        self.stage = Stage::Answered(keep.then(|| Box::new(record)));
    }

    /// A reply that the adapter did not see is Envoy's own: it is said again in the client's dialect.
    pub fn response_headers(&mut self, context: u32, shared: &mut Shared) -> Action {
        if let Stage::Reading(_) = self.stage
            && let Stage::Reading(reading) = std::mem::take(&mut self.stage)
        {
            self.turn_away(Turned { refusal: Refusal::UploadStalled, ticket: reading.ticket }, shared);
            return Action::Continue;
        }
        if let Stage::Admitted = self.stage
            && let Some(exchange) = shared.exchanges.get_mut(&context)
            && !exchange.replied()
        {
            let status = host::headers(Map::ResponseHeaders).ok().and_then(|h| h.status()).unwrap_or(503);
            let refusal = Refusal::from_envoy(status);
            LocalReply::refusal(&refusal, exchange.ticket.operation).send();
            exchange.refuse(refusal);
        }
        Action::Continue
    }

    /// The request is over, however it ended.
    pub fn log(&mut self, context: u32, shared: &mut Shared) {
        fault::at(Place::Log);
        let now = host::now();
        let records = match std::mem::take(&mut self.stage) {
            Stage::Admitted => {
                let Some(mut exchange) = shared.exchanges.remove(&context) else { return };
                // Asked only when something went wrong: a property costs as much as the rest of this callback.
                let details = if exchange.ended() { Vec::new() } else { details() };
                let records = exchange.close(Closing { now, details: &details });
                shared.metrics.closed(&exchange, &records);
                records
            }
            // Left before its body was whole.
            Stage::Reading(reading) | Stage::Parked(Waiting::Body(reading)) => {
                vec![reading.ticket.close(None, now, shared.control_plane_time(now))]
            }
            Stage::Answered(Some(record)) => vec![*record],
            Stage::New | Stage::Parked(Waiting::Models(_)) | Stage::Answered(None) => return,
        };
        if let Some(origin) = shared.origin(context) {
            // A failure costs the second witness of this one request, not the request.
            let _ = host::set_filter_state(names::FILTER_STATE_NAME, log::recorded(origin, &records).as_bytes());
        }
        shared.flow.book(context, records, now);
    }
}

/// Everything that is decided on headers alone.
fn arrive(end: bool, shared: &mut Shared) -> Result<Arrival, Box<Turned>> {
    let mut ticket = shared.ticket(host::now());
    let internal = |what| Refusal::Internal { what };
    let Ok(headers) = host::headers(Map::RequestHeaders) else {
        return Err(ticket.turned_away(internal("the request's headers are not readable")));
    };
    fault::ask(&headers);
    fault::at(Place::RequestHeaders);
    let mut head = Head::read(headers.iter(), openai::forwards);
    if clean(&head).is_err() {
        return Err(ticket.turned_away(internal("the request's headers are not writable")));
    }
    ticket.session = std::mem::take(&mut head.session);
    if let Some(reply) = LocalReply::probe(&head, || shared.is_ready()) {
        return Ok(Arrival::Answer(reply));
    }
    if head.upgrade {
        return Err(ticket.turned_away(Refusal::UpgradeNotSupported));
    }
    let key = match &head.key {
        Ok(key) => *key,
        Err(refusal) => return Err(ticket.turned_away(refusal.clone())),
    };
    let profile = match Identity::judge(shared.lookup(&key, ticket.started), client_address) {
        Ok((identity, profile)) => {
            ticket.identity = identity;
            profile
        }
        Err((refusal, identity)) => {
            ticket.identity = identity;
            return Err(ticket.turned_away(refusal));
        }
    };
    let operation = match route(&head.method, &head.path) {
        Ok(Route::ChatCompletions) => Operation::ChatCompletions,
        Ok(Route::Embeddings) => Operation::Embeddings,
        Ok(Route::Models) => return Ok(Arrival::Models(Box::new(Listing { ticket, name: None, profile }))),
        Ok(Route::Model(name)) => {
            return Ok(Arrival::Models(Box::new(Listing { ticket, name: Some(name), profile })));
        }
        Err(refusal) => return Err(ticket.turned_away(refusal)),
    };
    ticket.route = operation.name();
    if end {
        return Err(ticket.turned_away(Refusal::InvalidJson { reason: "it is empty".to_owned() }));
    }
    let limit = shared.max_body_bytes();
    Reading::new(ticket, head, operation, profile, limit).map(|reading| Arrival::Body(Box::new(reading)))
}

fn models(Listing { ticket, name, profile }: Listing, policy: &Policy) -> Result<LocalReply, Box<Turned>> {
    let body = match name.as_deref() {
        None => {
            let mut names: Vec<&str> =
                policy.models().filter(|m| profile.allows_model(m.id)).map(|m| m.name.as_str()).collect();
            names.sort_unstable();
            list_body(names)
        }
        Some(name) => match policy.model(name).filter(|m| profile.allows_model(m.id)) {
            Some(model) => model_body(&model.name),
            None => return Err(ticket.turned_away(Refusal::UnknownModel { model: label(name.as_bytes()) })),
        },
    };
    Ok(LocalReply::json(200, body, ticket.operation))
}

/// Takes away what only we or Envoy may set, before the router reads it, and a key in the query before anything logs it.
fn clean(head: &Head) -> host::HostResult<()> {
    for name in &head.forged {
        host::remove_header(Map::RequestHeaders, name.as_bytes())?;
    }
    if head.path_changed {
        host::set_header(Map::RequestHeaders, b":path", head.path.as_bytes())?;
    }
    Ok(())
}

/// Makes the request one that the admitted route takes. The filter state comes first: writing a header makes Envoy match
/// the route again, and that route wants both.
fn mark(plan: &str, cluster: &str, positions: usize) -> host::HostResult<()> {
    host::set_filter_state(names::FILTER_STATE_NAME, plan.as_bytes())?;
    if positions > 1 {
        let retries = (positions - 1).to_string();
        host::set_header(Map::RequestHeaders, b"x-envoy-max-retries", retries.as_bytes())?;
    }
    host::set_header(Map::RequestHeaders, names::LIST_HEADER.as_bytes(), cluster.as_bytes())
}

/// The client's address, as far as Envoy trusts those before it.
fn client_address() -> Option<IpAddr> {
    let address = host::property(&["source", "address"]).ok()??;
    let address: SocketAddr = std::str::from_utf8(&address).ok()?.parse().ok()?;
    Some(address.ip())
}

fn details() -> Vec<u8> {
    host::property(&["response", "code_details"]).ok().flatten().unwrap_or_default()
}
