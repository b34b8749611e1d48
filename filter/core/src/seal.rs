//! Sealed credentials.
