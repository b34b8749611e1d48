//! The local all-in-one.

pub mod bootstrap;
pub mod child;
pub mod envoy;
pub mod ports;
pub mod postgres;
mod private;
pub mod tools;
