//! Follows the store.
