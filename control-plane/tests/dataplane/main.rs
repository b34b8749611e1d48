//! The data plane's half of the control plane against a real Postgres.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

mod envoy;
mod fixture;

mod era;
mod flow;
mod ledger;
mod sync;
