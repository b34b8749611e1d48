//! The Admin API.
