//! The data directory: everything that the local run has to find again.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use zeroize::Zeroizing;

use super::{ports, private};
use crate::credentials::{Keyring, random};

/// Its paths, all absolute. Only one process at a time has it.
#[derive(Clone, Debug)]
pub struct Data {
    directory: PathBuf,
    /// Locked for as long as this process lives, however it ends.
    _lock: Arc<File>,
}

impl Data {
    /// Makes the directory if it is not there, and takes it.
    ///
    /// # Errors
    /// When it cannot be used, or another process has it.
    pub fn open(directory: &Path) -> anyhow::Result<Self> {
        let what = || format!("cannot use {} for state (choose another with --data)", directory.display());
        private::directory(directory).with_context(what)?;
        let directory = directory.canonicalize().with_context(what)?;
        let lock = lock(&directory)?;
        Ok(Self { directory, _lock: Arc::new(lock) })
    }

    /// A loopback port for `name`: the one it had the last time where that is free.
    pub fn port(&self, name: &str) -> anyhow::Result<SocketAddr> {
        let name = format!("{name}-port");
        let last = self.kept(&name).and_then(|port| port.parse().ok()).unwrap_or(0);
        let address = ports::choose(None, last, "--data")?.address;
        if address.port() != last {
            self.keep(&name, &address.port().to_string())?;
        }
        Ok(address)
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

/// Takes `directory` for this process, and writes there which one it is.
fn lock(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join("lock");
    let what = || path.display().to_string();
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).with_context(what)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut process = String::new();
            // Between the lock and its number: then it is not known.
            let _ = file.read_to_string(&mut process);
            bail!(
                "a quickstart already runs on this data (process {}); stop it, or choose other data with --data",
                if process.is_empty() { "unknown" } else { &process }
            );
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(what),
    }
    file.set_len(0).and_then(|()| file.write_all(std::process::id().to_string().as_bytes())).with_context(what)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_and_the_same_ports() {
        let directory = std::env::temp_dir().join(format!("sluicegate-data-{}", uuid::Uuid::now_v7()));
        let data = Data::open(&directory).unwrap();
        let port = data.port("x").unwrap();
        let error = Data::open(&directory).unwrap_err().to_string();
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        drop(data);
        let again = Data::open(&directory).unwrap();
        assert_eq!(again.port("x").unwrap(), port);
        let taken = std::net::TcpListener::bind(port).unwrap();
        assert_ne!(again.port("x").unwrap(), port);
        drop(taken);
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
