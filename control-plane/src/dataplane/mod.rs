//! Sync and Flow.
