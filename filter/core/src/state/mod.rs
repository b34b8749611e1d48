//! What an Envoy's shared data holds.
