//! One module per promise, each named after it; PROMISES are in the README. All in one binary, because linking it is dear.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test panics to fail"
)]

mod attached;
mod attacks;
mod bad_policy;
mod doctor;
mod draining;
mod encoded_requests;
mod envoy_versions;
mod harness;
mod identities;
mod k8s;
mod keys;
mod lists;
mod odd_providers;
mod p12_client_leaves;
mod p15_include_usage_hidden;
mod p16_no_double_billing;
mod p17_control_plane_down;
mod p18_any_split;
mod p19_constant_memory;
mod p21_byte_identical;
mod p22_upstream_cut;
mod p23_each_event_forwarded;
mod p27_owners_deleted;
mod p28_no_credential_leaks;
mod p29_outages;
mod p30_changes_under_load;
mod p31_traps;
mod p32_big_bodies;
mod p34_misconfigured;
mod p42_scoped_groups;
mod p44_admitted_once;
mod refusals;
mod refusals_of_state;
mod replicas;
mod resumes;
mod sdk;
mod shapes;
mod tls_to_providers;
mod traps;
mod walking;
