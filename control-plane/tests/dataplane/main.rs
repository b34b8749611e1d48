//! The data plane's half of the control plane against a real Postgres.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared with tests that need more of it")]
mod common;
mod envoy;
mod fixture;

mod era;
mod flow;
mod ledger;
mod sync;
