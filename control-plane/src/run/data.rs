//! The data directory: everything that the local run has to find again.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use zeroize::Zeroizing;

use super::private;
use crate::credentials::{Keyring, random};

/// Its paths, all absolute.
#[derive(Clone, Debug)]
pub struct Data {
    directory: PathBuf,
}

impl Data {
    /// Makes the directory if it is not there.
    pub fn open(directory: &Path) -> anyhow::Result<Self> {
        let what = || format!("cannot use {} for state (choose another with --data)", directory.display());
        private::directory(directory).with_context(what)?;
        let directory = directory.canonicalize().with_context(what)?;
        Ok(Self { directory })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The keyring's file, made if it is not there.
    pub fn keyring(&self) -> anyhow::Result<PathBuf> {
        let path = self.path("keyring");
        if !path.exists() {
            Keyring::create(&path)?;
        }
        Ok(path)
    }

    /// A secret of our own, made if it is not there.
    pub fn secret(&self, name: &str) -> anyhow::Result<Zeroizing<String>> {
        let make = || {
            let secret = random::bytes::<32>().map_err(|e| io::Error::other(e.to_string()))?;
            Ok(Zeroizing::new(hex::encode(secret)))
        };
        private::text(&self.path(name), make).with_context(|| format!("cannot keep {name} in the data directory"))
    }

    /// A secret that was kept, if it was.
    pub fn kept(&self, name: &str) -> Option<Zeroizing<String>> {
        let text = std::fs::read_to_string(self.path(name)).ok()?;
        Some(Zeroizing::new(text.trim().to_owned()))
    }

    /// Keeps a secret that was made elsewhere.
    pub fn keep(&self, name: &str, secret: &str) -> anyhow::Result<()> {
        private::write(&self.path(name), secret.as_bytes())
            .with_context(|| format!("cannot keep {name} in the data directory"))
    }
}
