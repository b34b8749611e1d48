//! What is decided on a request's headers alone.

use sluicegate_core::dialect::openai::routes::{Route, route};
use sluicegate_core::dialect::openai::{self, Operation};
use sluicegate_core::exchange::{Head, Reading, Ticket, Turned};
use sluicegate_core::plugin::Attached;
use sluicegate_core::refusal::Refusal;

use super::caller::Caller;
use crate::attached;
use crate::fault::{self, Place};
use crate::host::{self, Map};
use crate::reply::LocalReply;
use crate::vm::Shared;

/// A request that may go on.
pub enum Arrival {
    /// Its body is to come.
    Body(Request),
    /// Nothing more is needed to answer it.
    Models(Request),
    Answer(LocalReply),
    /// Somebody else's stream, marked as such.
    NotOurs,
}

/// What somebody asks for.
#[derive(Debug)]
pub struct Request {
    pub caller: Caller,
    pub wants: Wants,
}

#[derive(Debug)]
pub enum Wants {
    /// Boxed: it moves from callback to callback.
    Exchange(Box<Reading>),
    /// The models the caller may use, or one of them.
    Models(Ticket, Option<String>),
}

impl Request {
    pub fn turned_away(self, refusal: Refusal) -> Box<Turned> {
        self.wants.turned_away(refusal)
    }
}

impl Wants {
    pub fn ticket(&mut self) -> &mut Ticket {
        match self {
            Self::Exchange(reading) => &mut reading.ticket,
            Self::Models(ticket, _) => ticket,
        }
    }

    pub fn turned_away(mut self, refusal: Refusal) -> Box<Turned> {
        std::mem::take(self.ticket()).turned_away(refusal)
    }
}

/// `end`: there is no body. `attached`: the listener is somebody else's.
pub fn arrive(
    context: u32,
    end: bool,
    attached: Option<&Attached>,
    shared: &mut Shared,
) -> Result<Arrival, Box<Turned>> {
    let mut ticket = shared.ticket(host::now());
    let internal = |what| Refusal::Internal { what };
    let Ok(headers) = host::headers(Map::RequestHeaders) else {
        return Err(ticket.turned_away(internal("the request's headers are not readable")));
    };
    if let Some(attached) = attached
        && !attached::covers(attached, &headers)
    {
        let unmarked = |_| ticket.turned_away(internal("the request could not be marked as somebody else's"));
        return attached::pass().map(|()| Arrival::NotOurs).map_err(unmarked);
    }
    fault::ask(&headers);
    fault::at(Place::RequestHeaders);
    let mut head = Head::read(headers.iter(), openai::forwards);
    if clean(&head).is_err() || (attached.is_some() && attached::clean(&head).is_err()) {
        return Err(ticket.turned_away(internal("the request's headers are not writable")));
    }
    ticket.session = std::mem::take(&mut head.session);
    if let Some(reply) = LocalReply::probe(&head, || shared.is_ready()) {
        return Ok(Arrival::Answer(reply));
    }
    if head.upgrade {
        return Err(ticket.turned_away(Refusal::UpgradeNotSupported));
    }
    let caller = match Caller::find(&head, context, &mut ticket, shared) {
        Ok(caller) => caller,
        Err(refusal) => return Err(ticket.turned_away(refusal)),
    };
    let operation = match route(&head.method, &head.path) {
        Ok(Route::ChatCompletions) => Operation::ChatCompletions,
        Ok(Route::Embeddings) => Operation::Embeddings,
        Ok(Route::Models) => return Ok(Arrival::Models(Request { caller, wants: Wants::Models(ticket, None) })),
        Ok(Route::Model(name)) => {
            return Ok(Arrival::Models(Request { caller, wants: Wants::Models(ticket, Some(name)) }));
        }
        Err(refusal) => return Err(ticket.turned_away(refusal)),
    };
    ticket.route = operation.name();
    if end {
        return Err(ticket.turned_away(Refusal::InvalidJson { reason: "it is empty".to_owned() }));
    }
    if let Some(missing) = shared.gate_pauses.missing(ticket.started.0) {
        return Err(ticket.turned_away(missing));
    }
    let limit = shared.max_body_bytes();
    let reading = Reading::new(ticket, head, operation, limit)?;
    Ok(Arrival::Body(Request { caller, wants: Wants::Exchange(Box::new(reading)) }))
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
