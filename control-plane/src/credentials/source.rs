use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Keyring, KeyringError, Secret};

/// Where a provider's credential is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// In the database, under the keyring.
    #[default]
    Stored,
    /// In an environment variable of the control plane.
    Env(String),
    /// In a file the control plane can read, by its absolute path.
    File(PathBuf),
}

/// Why a text is no source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a source is `stored`, `env:<NAME>` or `file:</absolute/path>`")]
pub struct SourceError;

impl FromStr for Source {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let is_name = |name: &str| {
            !name.starts_with(|c: char| c.is_ascii_digit())
                && !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        match text.split_once(':') {
            None if text == "stored" => Ok(Self::Stored),
            Some(("env", name)) if is_name(name) => Ok(Self::Env(name.to_owned())),
            Some(("file", path)) if path.starts_with('/') => Ok(Self::File(PathBuf::from(path))),
            _ => Err(SourceError),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored => f.write_str("stored"),
            Self::Env(name) => write!(f, "env:{name}"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Why a credential cannot be had now.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error(transparent)]
    Keyring(#[from] KeyringError),
    #[error("environment variable {0} is not set")]
    NoVariable(String),
    #[error("{path}: {error}")]
    File { path: String, error: std::io::Error },
    #[error("what {0} holds is not one line of visible ASCII, 8192 bytes at most")]
    Unfit(String),
    #[error("it is stored nowhere")]
    Missing,
}

/// The credential `id` itself, read where it is now. `sealed` is what the database holds of it.
///
/// # Errors
/// Where its source has nothing that a header could carry, or the keyring is not the one it was sealed under.
pub async fn resolve(
    id: u32,
    source: &Source,
    sealed: Option<&[u8]>,
    keyring: &Keyring,
) -> Result<Secret, ResolveError> {
    let text = match source {
        Source::Stored => return open(id, sealed.ok_or(ResolveError::Missing)?, keyring),
        Source::Env(name) => std::env::var(name).map_err(|_| ResolveError::NoVariable(name.clone()))?,
        Source::File(path) => tokio::fs::read_to_string(path)
            .await
            .map_err(|error| ResolveError::File { path: path.display().to_string(), error })?,
    };
    let secret = Secret::new(text.trim_end_matches(['\r', '\n']).to_owned());
    if secret.is_header_safe() { Ok(secret) } else { Err(ResolveError::Unfit(source.to_string())) }
}

/// A stored credential, opened.
///
/// # Errors
/// Where the keyring is not the one it was sealed under, or the bytes are not of this credential.
pub fn open(id: u32, sealed: &[u8], keyring: &Keyring) -> Result<Secret, ResolveError> {
    let bytes = keyring.open(sealed, &crate::store::credential_context(id))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| KeyringError::Forged)?;
    Ok(Secret::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_survives_both_ways() {
        for text in ["stored", "env:OPENAI_API_KEY", "file:/run/secrets/openai"] {
            assert_eq!(text.parse::<Source>().unwrap().to_string(), text);
        }
        for text in ["", "env:", "env:A-B", "env:1A", "file:relative", "secret:x", "sk-123", "STORED"] {
            assert_eq!(text.parse::<Source>(), Err(SourceError), "{text:?}");
        }
    }
}
