//! The keyring: a file of keys under which secrets in the database are sealed.
//!
//! ```text
//! sluicegate-keyring v1
//! 5f2c9a1b 8d…64 hex digits
//! ```
//! The first key seals; all of them open, so a key is replaced by putting a new one before it. A line that starts with `#`
//! is a comment. A sealed value is `1, key id (4), nonce (24), XChaCha20-Poly1305 ciphertext`, bound to a context that says
//! what it is, so that values cannot be swapped between rows.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use zeroize::Zeroizing;

use super::random;

const HEADER: &str = "sluicegate-keyring v1";
const SEALED_VERSION: u8 = 1;
const NONCE_BYTES: usize = 24;

/// Keys, the active one first.
pub struct Keyring {
    keys: Vec<NamedKey>,
}

struct NamedKey {
    id: [u8; 4],
    key: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<String> = self.keys.iter().map(|key| hex::encode(key.id)).collect();
        f.debug_struct("Keyring").field("ids", &ids).finish_non_exhaustive()
    }
}

/// What can go wrong with a keyring or what was sealed under it.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    #[error("{path}: {error}")]
    File { path: String, error: std::io::Error },
    #[error("{path} is no keyring: {reason}")]
    Format { path: String, reason: String },
    /// The first thing to look at where a keyring file was lost or mixed up.
    #[error("the secret was sealed under key {0}, which this keyring does not have")]
    UnknownKey(String),
    #[error("the sealed secret does not belong here, or was changed")]
    Forged,
    #[error("this keyring is not the one this database was sealed under")]
    NotOfThisDatabase,
    #[error("the secret could not be sealed")]
    Seal,
    #[error("no randomness: {0}")]
    Randomness(String),
}

impl Keyring {
    /// A keyring with one new key, in memory only.
    ///
    /// # Errors
    /// Without randomness.
    pub fn generate() -> Result<Self, KeyringError> {
        let key = NamedKey { id: random::bytes()?, key: Zeroizing::new(random::bytes()?) };
        Ok(Self { keys: vec![key] })
    }

    /// Writes a new keyring to `path`, which must not exist, readable by its owner alone, as the folders that are made for it.
    ///
    /// # Errors
    /// When the file exists or cannot be written.
    pub fn create(path: &Path) -> Result<Self, KeyringError> {
        let file = |error| KeyringError::File { path: path.display().to_string(), error };
        let keyring = Self::generate()?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(file)?;
        }
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(file)?;
        let mut text = Zeroizing::new(format!("{HEADER}\n"));
        for key in &keyring.keys {
            text.push_str(&format!("{} {}\n", hex::encode(key.id), *Zeroizing::new(hex::encode(*key.key))));
        }
        out.write_all(text.as_bytes()).and_then(|()| out.sync_all()).map_err(file)?;
        Ok(keyring)
    }

    /// # Errors
    /// When the file cannot be read or is no keyring.
    pub fn load(path: &Path) -> Result<Self, KeyringError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|error| KeyringError::File { path: name.clone(), error })?;
        Self::parse(&Zeroizing::new(text)).map_err(|reason| KeyringError::Format { path: name, reason })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        if lines.next() != Some(HEADER) {
            return Err(format!("its first line is not {HEADER:?}"));
        }
        let keys = lines.enumerate().map(|(i, line)| parse_key(line).ok_or(format!("key {} is malformed", i + 1)));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err("it holds no key".to_owned()) } else { Ok(Self { keys }) }
    }

    /// Seals `plain` for `context` under the active key.
    ///
    /// # Errors
    /// Without randomness.
    pub fn seal(&self, plain: &[u8], context: &str) -> Result<Vec<u8>, KeyringError> {
        let active = self.keys.first().ok_or(KeyringError::Seal)?;
        let nonce: [u8; NONCE_BYTES] = random::bytes()?;
        let ciphertext = active
            .cipher()
            .encrypt(&XNonce::from(nonce), Payload { msg: plain, aad: context.as_bytes() })
            .map_err(|_| KeyringError::Seal)?;
        let mut sealed = vec![SEALED_VERSION];
        sealed.extend_from_slice(&active.id);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(&ciphertext);
        Ok(sealed)
    }

    /// Opens what [`Keyring::seal`] sealed for the same context.
    ///
    /// # Errors
    /// [`KeyringError::UnknownKey`] where another keyring sealed it, [`KeyringError::Forged`] where it was changed.
    pub fn open(&self, sealed: &[u8], context: &str) -> Result<Zeroizing<Vec<u8>>, KeyringError> {
        let (&[version], rest) = sealed.split_first_chunk::<1>().ok_or(KeyringError::Forged)?;
        let (id, rest) = rest.split_first_chunk::<4>().ok_or(KeyringError::Forged)?;
        let (nonce, ciphertext) = rest.split_first_chunk::<NONCE_BYTES>().ok_or(KeyringError::Forged)?;
        if version != SEALED_VERSION {
            return Err(KeyringError::Forged);
        }
        let key = self.keys.iter().find(|key| key.id == *id).ok_or(KeyringError::UnknownKey(hex::encode(id)))?;
        let payload = Payload { msg: ciphertext, aad: context.as_bytes() };
        key.cipher().decrypt(&XNonce::from(*nonce), payload).map(Zeroizing::new).map_err(|_| KeyringError::Forged)
    }
}

impl NamedKey {
    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&Key::from(*self.key))
    }
}

fn parse_key(line: &str) -> Option<NamedKey> {
    let (id, key) = line.split_once(' ')?;
    let id = hex::decode(id).ok()?;
    let key = Zeroizing::new(hex::decode(key.trim()).ok()?);
    Some(NamedKey { id: id.try_into().ok()?, key: Zeroizing::new(key.as_slice().try_into().ok()?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_opens_only_where_it_belongs() {
        let keyring = Keyring::generate().unwrap();
        let sealed = keyring.seal(b"sk-provider", "credential 1").unwrap();
        assert_eq!(keyring.open(&sealed, "credential 1").unwrap().as_slice(), b"sk-provider");
        assert!(matches!(keyring.open(&sealed, "credential 2"), Err(KeyringError::Forged)));
        for i in 5..sealed.len() {
            let mut bad = sealed.clone();
            bad[i] ^= 1;
            assert!(matches!(keyring.open(&bad, "credential 1"), Err(KeyringError::Forged)), "byte {i}");
        }
        for len in 0..sealed.len() {
            assert!(keyring.open(&sealed[..len], "credential 1").is_err());
        }
        let other = Keyring::generate().unwrap();
        assert!(matches!(other.open(&sealed, "credential 1"), Err(KeyringError::UnknownKey(_))));
    }

    #[test]
    fn a_file_survives_both_ways_and_is_never_overwritten() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir =
            std::env::temp_dir().join(format!("sluicegate-keyring-{}", hex::encode(random::bytes::<8>().unwrap())));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("keyring");
        let made = Keyring::create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let sealed = made.seal(b"x", "c").unwrap();
        assert_eq!(Keyring::load(&path).unwrap().open(&sealed, "c").unwrap().as_slice(), b"x");
        assert!(matches!(Keyring::create(&path), Err(KeyringError::File { .. })));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_new_first_key_seals_and_the_old_one_still_opens() {
        let old = format!("01020304 {}", "11".repeat(32));
        let new = format!("0a0b0c0d {}", "22".repeat(32));
        let before = Keyring::parse(&format!("{HEADER}\n{old}\n")).unwrap();
        let after = Keyring::parse(&format!("{HEADER}\n# replaced\n{new}\n{old}\n")).unwrap();
        let sealed = before.seal(b"x", "c").unwrap();
        assert!(after.open(&sealed, "c").is_ok());
        assert!(before.open(&after.seal(b"x", "c").unwrap(), "c").is_err());
        for bad in ["", "sluicegate-keyring v2\n", HEADER, &format!("{HEADER}\n0102 11")] {
            assert!(Keyring::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn nothing_prints_a_key() {
        let keyring = Keyring::parse(&format!("{HEADER}\n01020304 {}\n", "ab".repeat(32))).unwrap();
        assert!(!format!("{keyring:?}").contains("abab"));
    }
}
