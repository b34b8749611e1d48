//! The store's writes and the Admin API against a real Postgres.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking"
)]

mod fixture;

mod apply;
mod cli;
mod cli_streams;
mod keys;
mod owners;
mod policy;
mod rest;
mod secrets;
mod writers;
