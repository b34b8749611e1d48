//! The Envoy filter: host calls and callbacks. Everything it decides is in `sluicegate-core`.
//!
//! One module is loaded twice into a listener's configuration, as the *gate* (in the listener's chain) and as the
//! *adapter* (in the router's upstream chain, once per attempt); both share one VM per worker, and its state.

mod abi;
mod adapter;
mod attached;
mod body;
#[macro_use]
mod count;
mod credentials;
mod decodings;
mod fault;
mod flow;
mod gate;
mod host;
mod link;
mod metrics;
mod reply;
mod root;
mod store;
mod vm;
