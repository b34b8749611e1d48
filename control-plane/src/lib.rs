//! The Sluicegate control plane.
//!
//! | module | what it does |
//! |---|---|
//! | [`admin`] | the Admin API: one service layer, REST over it |
//! | [`store`] | Postgres, the only place that knows SQL |
//! | [`publisher`] | follows the store and tells everyone else what is new |
//! | [`dataplane`] | `Sync` and `Flow`: state down to the Envoys, usage up |
//! | [`xds`] | listeners, routes, clusters and secrets of managed Envoys |
//! | [`credentials`] | the keyring and where provider credentials come from |
//! | [`serve`] | puts the parts together, on their ports |
//! | [`run`] | the local all-in-one: Postgres, control plane, Envoy, demo provider |
//! | [`drain`] | beside an Envoy that is to stop: its streams end first |
//! | [`cli`] | the commands |

pub mod admin;
pub mod cli;
pub mod credentials;
pub mod dataplane;
pub mod drain;
pub mod publisher;
pub mod run;
pub mod serve;
pub mod store;
pub mod tls;
pub mod xds;

/// The tonic services of `dataplane.proto`; the messages are core's.
pub mod proto {
    #![allow(missing_docs, clippy::all, reason = "generated")]
    tonic::include_proto!("sluicegate.dataplane.v1");
}
