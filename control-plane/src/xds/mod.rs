//! xDS: listener, routes, clusters and trust bundles of managed Envoys, by state-of-the-world ADS.
//!
//! The only module that knows Envoy's protobuf types. Values go in ([`Topology`], [`ListenerConfig`]), resources come out
//! ([`Resources`]); [`Machine`] decides what one stream is sent and what its answers mean; [`Ads`] carries that over tonic;
//! [`ClustersReady`] tells the rest of the control plane which policy revision an Envoy has the clusters for.

mod cluster;
mod jwt;
mod listener;
mod machine;
mod part;
mod ready;
mod resources;
mod retain;
mod route;
mod secret;
mod service;
#[cfg(test)]
mod tests;
mod topology;

pub use listener::{ListenerConfig, ListenerTls, WasmCode, plugin_config};
pub use machine::{Event, Kind, Machine, Request, Response};
pub use ready::ClustersReady;
pub use resources::Resources;
pub use retain::Retained;
pub use route::not_for_providers;
pub use service::{Ads, Authenticate, Lost, Publisher};
pub use topology::{Endpoint, Issuer, Keys, Topology, Trust, Upstream};
