//! One request's life.
