//! The keyring and provider credentials.
//!
//! Secrets at rest are sealed under a keyring, a file that never enters the database. A provider's credential is either
//! stored that way, or read from an environment variable or a file of the control plane each time it is needed.

mod keyring;
pub mod random;
mod secret;
mod source;

pub use keyring::{Keyring, KeyringError};
pub use secret::Secret;
pub use source::{ResolveError, Source, SourceError, open, resolve};
