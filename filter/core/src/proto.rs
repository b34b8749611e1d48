//! The generated messages of `proto/`.
#![expect(missing_docs, clippy::all, reason = "generated; the .proto files carry the comments")]

pub mod dataplane {
    include!(concat!(env!("OUT_DIR"), "/sluicegate.dataplane.v1.rs"));
}
pub mod policy {
    include!(concat!(env!("OUT_DIR"), "/sluicegate.policy.v1.rs"));
}
