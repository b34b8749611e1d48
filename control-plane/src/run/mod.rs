//! The local all-in-one.

pub mod bootstrap;
pub mod child;
pub mod tools;
