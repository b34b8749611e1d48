//! The gate: the filter in the listener's chain. Who asks, for what, and may they; at the end, what it came to.

mod arrival;
mod caller;

use std::rc::Rc;

use sluicegate_core::dialect::openai::models::{list_body, model_body};
use sluicegate_core::exchange::{Awaited, Closing, Identity, Moment, Mono, Reading, Ticket, Turned, label, log};
use sluicegate_core::plugin::Attached;
use sluicegate_core::policy::{Policy, names};
use sluicegate_core::proto::dataplane::Record;
use sluicegate_core::refusal::Refusal;
use sluicegate_core::state::CompiledProfile;

use crate::attached;
use crate::body;
use crate::fault::{self, Place};
use crate::host::{self, Map};
use crate::reply::LocalReply;
use crate::vm::{Action, Shared};
use arrival::{Arrival, Request, Wants, arrive};
use caller::Caller;

/// How long a request waits for the policy of a VM that has just begun.
const POLICY_WAIT_NS: u64 = 1_000_000_000;
/// How long for anything else: shorter than its catch-all route, which would end it without a word.
const PATIENCE_NS: u64 = 4_000_000_000;

/// One client request, as the gate sees it.
#[derive(Debug)]
pub struct Gate {
    stage: Stage,
    /// Where the listener is somebody else's.
    attached: Option<Rc<Attached>>,
}

#[derive(Debug, Default)]
enum Stage {
    /// Before its headers, or between two stages.
    #[default]
    New,
    /// Its body is coming in.
    Reading(Request),
    /// All of it is here, since then; what is missing is a policy, or who this is. The root resumes it.
    Parked(Request, Mono),
    /// Its `Exchange` is in [`Shared::exchanges`] under this context's id.
    Admitted,
    /// Answered by the gate; the record, if there is one, goes to the ledger.
    Answered(Option<Box<Record>>),
    /// Somebody else's.
    Passed,
}

impl Gate {
    pub fn new(attached: Option<Rc<Attached>>) -> Self {
        Self { stage: Stage::New, attached }
    }

    pub fn request_headers(&mut self, context: u32, end: bool, shared: &mut Shared) -> Action {
        match arrive(context, end, self.attached.as_deref(), shared) {
            Ok(Arrival::Body(request)) => {
                shared.gate_pauses.begin(context);
                self.stage = Stage::Reading(request);
            }
            Ok(Arrival::Models(request)) => self.proceed(context, request, host::now(), shared),
            Ok(Arrival::Answer(reply)) => self.answer(&reply),
            Ok(Arrival::NotOurs) => self.stage = Stage::Passed,
            Err(turned) => self.turn_away(*turned, shared),
        }
        self.request_action()
    }

    /// `size` counts all that is buffered: while a request is paused the host keeps what came before.
    pub fn request_body(&mut self, context: u32, size: usize, end: bool, shared: &mut Shared) -> Action {
        fault::at(Place::RequestBody);
        match std::mem::take(&mut self.stage) {
            Stage::Reading(Request { caller, wants: Wants::Exchange(reading) }) => {
                shared.gate_pauses.works();
                match body::read(reading, size) {
                    Ok(reading) if end => self.read(context, caller, reading, shared),
                    Ok(reading) => self.stage = Stage::Reading(Request { caller, wants: Wants::Exchange(reading) }),
                    Err(turned) => self.turn_away(*turned, shared),
                }
            }
            other => self.stage = other,
        }
        self.request_action()
    }

    /// The end of the stream can come in trailers; admission happens here then.
    pub fn request_trailers(&mut self, context: u32, shared: &mut Shared) -> Action {
        match std::mem::take(&mut self.stage) {
            Stage::Reading(Request { caller, wants: Wants::Exchange(reading) }) => {
                shared.gate_pauses.works();
                self.read(context, caller, reading, shared);
            }
            other => self.stage = other,
        }
        self.request_action()
    }

    /// A request that waits is answered with `Pause` at each of its callbacks: `Continue` would release it.
    fn request_action(&self) -> Action {
        match self.stage {
            Stage::Admitted | Stage::Passed => Action::Continue,
            Stage::New | Stage::Reading(_) | Stage::Parked(..) | Stage::Answered(_) => Action::Pause,
        }
    }

    /// The body is whole. One that is compressed is decoded at once if that is soon done, and otherwise waits for its turn.
    fn read(&mut self, context: u32, caller: Caller, mut reading: Box<Reading>, shared: &mut Shared) {
        let now = host::now();
        let decoded = match (reading.is_encoded(), shared.decodings.at_once(now.0)) {
            (false, _) => Ok(true),
            (true, None) => Ok(false),
            (true, Some(until)) => {
                let decoded = decode(context, &mut reading, until, shared);
                shared.decodings.spend(host::now().0.saturating_sub(now.0));
                decoded
            }
        };
        let request = Request { caller, wants: Wants::Exchange(reading) };
        match decoded {
            Err(refusal) => self.turn_away(*request.turned_away(refusal), shared),
            Ok(true) => self.proceed(context, request, now, shared),
            Ok(false) => {
                let until = Mono(now.0.saturating_add(PATIENCE_NS));
                if !shared.decodings.wait(context) || !shared.waiting.park(context, Awaited::Turn, until) {
                    return self.turn_away(*request.turned_away(Refusal::GatewayBusy), shared);
                }
                shared.flow.hurry(context);
                self.stage = Stage::Parked(request, now);
            }
        }
    }

    /// For the root, which has made this context the effective one: goes on decoding until `until`. Returns whether the
    /// request is to be resumed.
    pub fn decode_on(&mut self, context: u32, until: u64, shared: &mut Shared) -> bool {
        let Stage::Parked(Request { wants: Wants::Exchange(reading), .. }, _) = &mut self.stage else {
            shared.decodings.done(context);
            return false;
        };
        let decoded = decode(context, reading, until, shared);
        if let Ok(false) = decoded {
            return false;
        }
        shared.decodings.done(context);
        shared.waiting.forget(context);
        if let Stage::Parked(request, since) = std::mem::take(&mut self.stage) {
            match decoded {
                Err(refusal) => self.turn_away(*request.turned_away(refusal), shared),
                Ok(_) => self.proceed(context, request, since, shared),
            }
        }
        matches!(self.stage, Stage::Admitted)
    }

    /// All of the request is here, since `since`: it is decided, or waits for what is missing.
    fn proceed(&mut self, context: u32, request: Request, since: Mono, shared: &mut Shared) {
        if matches!(&request.wants, Wants::Exchange(reading) if reading.is_encoded()) {
            return self.turn_away(*request.turned_away(Refusal::GatewayBusy), shared);
        }
        let Request { caller, mut wants } = request;
        let caller = match caller.settle(context, wants.ticket(), shared) {
            Ok(caller) => caller,
            Err(refusal) => return self.turn_away(*wants.turned_away(refusal), shared),
        };
        match (caller, shared.policy.clone()) {
            (Caller::Known(profile), Some(policy)) => match wants {
                Wants::Exchange(reading) => self.decide(context, reading, &profile, &policy, shared),
                Wants::Models(ticket, name) => self.list_models(ticket, name.as_deref(), &profile, &policy, shared),
            },
            (caller, _) => self.park(context, Request { caller, wants }, since, shared),
        }
    }

    fn park(&mut self, context: u32, request: Request, since: Mono, shared: &mut Shared) {
        let (awaited, patience) = match request.caller.awaits() {
            Some(identity @ Awaited::Identity(_)) => (identity, PATIENCE_NS),
            Some(Awaited::Policy | Awaited::Turn) | None => (Awaited::Policy, POLICY_WAIT_NS),
        };
        let until = Mono(since.0.saturating_add(patience));
        if until <= host::now() || !shared.waiting.park(context, awaited, until) {
            return self.turn_away(*request.turned_away(Refusal::NotReady), shared);
        }
        self.stage = Stage::Parked(request, since);
    }

    /// For the root, which has made this context the effective one: what was missing is here, or there is no more time.
    /// Returns whether the request is to be resumed.
    pub fn unpark(&mut self, context: u32, shared: &mut Shared) -> bool {
        match std::mem::take(&mut self.stage) {
            Stage::Parked(request, since) => {
                self.proceed(context, request, since, shared);
                matches!(self.stage, Stage::Admitted)
            }
            other => {
                self.stage = other;
                false
            }
        }
    }

    /// Its body is still to come.
    pub fn is_reading(&self) -> bool {
        matches!(self.stage, Stage::Reading(_))
    }

    /// For the root, as [`Self::unpark`]: the body will not come.
    pub fn give_up(&mut self, refusal: Refusal, shared: &mut Shared) {
        match std::mem::take(&mut self.stage) {
            Stage::Reading(request) => self.turn_away(*request.turned_away(refusal), shared),
            other => self.stage = other,
        }
    }

    /// Happens once to a request, and nothing else lets one through.
    fn decide(
        &mut self,
        context: u32,
        reading: Box<Reading>,
        profile: &CompiledProfile,
        policy: &Rc<Policy>,
        shared: &mut Shared,
    ) {
        let now = host::now();
        let moment = Moment { now, now_ns: shared.control_plane_time(now), random: shared.random() };
        let mut exchange = match reading.admit(profile, policy, moment) {
            Ok(exchange) => exchange,
            Err(turned) => return self.turn_away(*turned, shared),
        };
        if let Some(attached) = &self.attached
            && let Err(refusal) = attached::send(attached, &mut exchange)
        {
            return self.turn_away(Turned { refusal, ticket: exchange.ticket }, shared);
        }
        fault::at(Place::Admit);
        let plan = log::admitted(shared.origin(context), &exchange.plan());
        if mark(&plan, &exchange.cluster, exchange.positions.len()).is_err() {
            let refusal = Refusal::Internal { what: "the request could not be marked as admitted" };
            return self.turn_away(Turned { refusal, ticket: exchange.ticket }, shared);
        }
        shared.exchanges.insert(context, exchange);
        self.stage = Stage::Admitted;
    }

    /// The models this caller may use, or one of them. Nothing runs, so nothing is booked.
    fn list_models(
        &mut self,
        ticket: Ticket,
        name: Option<&str>,
        profile: &CompiledProfile,
        policy: &Policy,
        shared: &mut Shared,
    ) {
        let body = match name {
            None => {
                let mut names: Vec<&str> =
                    policy.models().filter(|m| profile.allows_model(m.id)).map(|m| m.name.as_str()).collect();
                names.sort_unstable();
                list_body(names)
            }
            Some(name) => match policy.model(name).filter(|m| profile.allows_model(m.id)) {
                Some(model) => model_body(&model.name),
                None => {
                    let refusal = Refusal::UnknownModel { model: label(name.as_bytes()) };
                    return self.turn_away(*ticket.turned_away(refusal), shared);
                }
            },
        };
        self.answer(&LocalReply::json(200, body, ticket.operation));
    }

    fn answer(&mut self, reply: &LocalReply) {
        reply.send();
        self.stage = Stage::Answered(None);
    }

    fn turn_away(&mut self, Turned { refusal, ticket }: Turned, shared: &mut Shared) {
        LocalReply::refusal(&refusal, ticket.operation).send();
        let now = host::now();
        let record = ticket.close(Some(&refusal), now, shared.control_plane_time(now));
        shared.refused(&refusal);
        // What has no owner is not booked without end: a flood of bad keys is counted, and only a few are kept.
        let keep = ticket.identity != Identity::default() || shared.may_book_stranger(now);
        self.stage = Stage::Answered(keep.then(|| Box::new(record)));
    }

    /// A reply that the adapter did not see is Envoy's own: it is said again in the client's dialect.
    pub fn response_headers(&mut self, context: u32, shared: &mut Shared) -> Action {
        if let Stage::Reading(_) = self.stage
            && let Stage::Reading(request) = std::mem::take(&mut self.stage)
        {
            let refusal = match reply_status() {
                Some(400) => Refusal::MalformedRequest,
                Some(413) => Refusal::BodyTooLarge { limit: None },
                Some(_) | None => Refusal::UploadStalled,
            };
            self.turn_away(*request.turned_away(refusal), shared);
            return Action::Continue;
        }
        if let Stage::Admitted = self.stage
            && let Some(exchange) = shared.exchanges.get_mut(&context)
            && !exchange.replied()
        {
            let status = reply_status().unwrap_or(503);
            let refusal = match &self.attached {
                Some(_) if exchange.attempts() == 0 => Refusal::unadapted(status, &details()),
                _ => Refusal::from_envoy(status),
            };
            LocalReply::refusal(&refusal, exchange.ticket.operation).send();
            exchange.refuse(refusal.clone());
            shared.refused(&refusal);
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
                // The client may leave before its adapter hears of it.
                if let Some(last) = exchange.attempts().checked_sub(1)
                    && exchange.waits(last)
                    && host::never_connected()
                {
                    exchange.never_sent(last);
                }
                let records = exchange.close(Closing { now, details: &details });
                shared.metrics.closed(&exchange, &records);
                records
            }
            // Left before it was decided. Of who asks for models nothing is booked: nothing would have run.
            Stage::Reading(request) | Stage::Parked(request, _) => match request.wants {
                Wants::Exchange(reading) => vec![reading.ticket.close(None, now, shared.control_plane_time(now))],
                Wants::Models(..) => return,
            },
            Stage::Answered(Some(record)) => vec![*record],
            Stage::New | Stage::Answered(None) | Stage::Passed => return,
        };
        // Before the process's identity is known a record in the log would be another one than that which is sent. A failure
        // costs the second witness of this one request, not the request.
        if shared.boot != 0 {
            let value = log::recorded(shared.origin(context), &records);
            let _ = host::set_filter_state(names::FILTER_STATE_NAME, value.as_bytes());
        }
        shared.flow.book(context, records, now);
    }
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

/// Decodes until `until`; `false` while there is more to do.
fn decode(context: u32, reading: &mut Reading, until: u64, shared: &mut Shared) -> Result<bool, Refusal> {
    let Some(bytes) = body::decode(reading, until)? else { return Ok(false) };
    if shared.decodings.hold(context, bytes) { Ok(true) } else { Err(Refusal::GatewayBusy) }
}

/// Of the reply that is on its way to the client.
fn reply_status() -> Option<u32> {
    host::headers(Map::ResponseHeaders).ok().and_then(|headers| headers.status())
}

fn details() -> Vec<u8> {
    host::property(&["response", "code_details"]).ok().flatten().unwrap_or_default()
}
