//! The local all-in-one.
