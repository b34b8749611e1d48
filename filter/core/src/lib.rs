//! Everything Sluicegate decides, as a pure library: values in, decisions out, time and randomness as arguments.
//! The Envoy filter (`filter/`) and the control plane share it; neither IO nor a clock lives here.
//!
//! | module | what it decides |
//! |---|---|
//! | [`noun`] | owners, money, usage, prices |
//! | [`policy`] | a wire `Snapshot` compiled into the `Policy` a request is judged by |
//! | [`state`] | what an Envoy's shared data holds, and how messages of the control plane get into it |
//! | [`exchange`] | one request's life: credential, admission, plan, attempt, reply, records |
//! | [`dialect`] | what differs between providers' wire formats |
//! | [`json`], [`sse`] | resumable scanners and surgical edits |
//! | [`plugin`] | the configuration of a filter entry |
//! | [`refusal`] | every reason to say no |
//! | [`seal`] | provider credentials on their way to an Envoy |

pub mod dialect;
pub mod exchange;
pub mod json;
pub mod noun;
pub mod plugin;
pub mod policy;
pub mod proto;
pub mod refusal;
pub mod seal;
pub mod sse;
pub mod state;
