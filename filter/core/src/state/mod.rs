//! What an Envoy's shared data holds.

pub mod feed;
pub mod record;
#[cfg(test)]
mod reference;
