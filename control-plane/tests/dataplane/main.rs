//! The data plane's half of the control plane against a real Postgres.

#[path = "../common/mod.rs"]
mod common;
mod envoy;
mod fixture;

mod era;
mod flow;
mod ledger;
mod sync;
