//! TLS on both ports.
