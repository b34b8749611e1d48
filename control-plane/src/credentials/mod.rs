//! The keyring and provider credentials.
