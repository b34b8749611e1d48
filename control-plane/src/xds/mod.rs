//! xDS.
