//! The harness of the end-to-end tests: real Envoys, control plane and Postgres, and a scripted provider.
//!
//! [`stack`] puts a whole Sluicegate together, [`control_plane`] knows how ours is started, [`admin`] its REST API; a
//! [`scene`] is one test's corner of a stack. The rest are tools: processes, clients, load, faults between the parts.
//!
//! Everything runs on one runtime ([`run`]), so what tests share may be used from any of them.
#![expect(clippy::expect_used, clippy::panic, reason = "a harness panics to fail a test")]

pub mod admin;
pub mod attached;
pub mod client;
pub mod control_plane;
pub mod echo;
pub mod envoy;
pub mod fault;
pub mod interpose;
pub mod issuer;
pub mod ledger;
pub mod load;
pub mod process;
pub mod run;
pub mod scene;
pub mod sse;
pub mod stack;
pub mod stats;
pub mod tools;

pub use client::{Call, Http, Outgoing, Reply, send};
pub use run::{alone, eventually, side_by_side};
pub use scene::Scene;
pub use stack::Stack;
