//! One request's life: [`Head`] -> [`Reading`] -> [`Exchange`] with its attempts -> records.
//!
//! Each stage consumes the last, so a check cannot be skipped: a body is read only for an [`Identity`] that may ask, an
//! [`Exchange`] exists only for a request that was admitted.

mod admit;
mod asks;
mod attempt;
mod coding;
pub mod credential;
mod finish;
mod head;
pub mod log;
mod outbox;
#[cfg(test)]
mod tests;
mod ticket;
pub mod token;
mod waiting;

pub use admit::{Identity, Moment, Reading};
pub use asks::Asks;
pub use attempt::{ReplyBody, ReplyHead, Upstream};
pub use finish::Closing;
pub use head::{Head, label};
pub use outbox::Outbox;
pub use ticket::{Mono, OperationId, Ticket, Turned};
pub use waiting::{Awaited, Waiting};

use std::rc::Rc;

use attempt::Attempt;

use crate::dialect::openai::{Operation, request::RequestFields};
use crate::policy::{Policy, Position};
use crate::refusal::Refusal;

/// An admitted request. The gate makes it, the adapter runs its attempts, the gate closes it.
#[derive(Debug)]
pub struct Exchange {
    pub ticket: Ticket,
    pub operation: Operation,
    pub policy: Rc<Policy>,
    /// Id of the model the client asked for.
    pub model: u32,
    /// The name of the aggregate cluster that stands for `positions`.
    pub cluster: String,
    pub positions: Vec<Position>,
    /// When it was decided, a moment after the last request byte.
    admitted: Mono,
    /// The same in control-plane time, ns since 1970.
    admitted_ns: i64,
    fields: RequestFields,
    /// As the client asked, with its query.
    path: String,
    body_bytes: u64,
    /// Client headers no provider is to see.
    private: Vec<String>,
    attempts: Vec<Attempt>,
    /// What the client gets instead of the provider's reply.
    refusal: Option<Refusal>,
}
