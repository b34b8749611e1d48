//! The Admin API: one service layer ([`Service`]), REST over it ([`router`]).
//!
//! Every route but `/openapi.json` wants `Authorization: Bearer <admin token>`. A refusal is
//! `{"error": {"code", "message", "field"}}`; `field` is the path of what is wrong in the request.

mod auth;
mod doctor;
mod error;
mod reconcile;
mod rest;
mod service;

use std::sync::Arc;

use axum::Router;

pub use doctor::{Diagnosis, Finding, Severity};
pub use error::{Error, Problem, ProblemBody};
pub use reconcile::Difference;
pub use rest::{VERSION_HEADER, openapi};
pub use service::{ApplyOutcome, IssuedAdminToken, IssuedKey, IssuedNodeToken, Page, Service};

/// All routes of the Admin API.
pub fn router(service: Arc<Service>) -> Router {
    rest::router(service)
}
