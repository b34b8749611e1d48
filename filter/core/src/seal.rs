//! Provider credentials on their way to an Envoy, and secrets that cannot be printed.
//!
//! A credential crosses the wire and lies in shared data sealed: ChaCha20-Poly1305 ([RFC 8439]) under a key that an Envoy
//! has from its environment. What it is bound to (era, credential id, revision) is authenticated with it, so one sealed
//! value cannot stand in for another.
//!
//! [RFC 8439]: https://www.rfc-editor.org/rfc/rfc8439

use std::fmt;

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Key, Nonce};
use zeroize::{Zeroize as _, Zeroizing};

/// Bytes of the nonce that a sealed value begins with.
pub const NONCE_BYTES: usize = 12;

/// What the credentials of one Envoy are sealed under: 256 bits.
#[derive(Clone)]
pub struct SealKey(Zeroizing<[u8; 32]>);

/// A seal key is 64 hexadecimal digits, and this was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a seal key is 64 hexadecimal digits")]
pub struct NotASealKey;

impl SealKey {
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// From its 64 hexadecimal digits, as in `SLUICEGATE_SEAL_KEY`.
    pub fn parse(digits: &[u8]) -> Result<Self, NotASealKey> {
        let mut key = Self::new([0; 32]);
        hex::decode_to_slice(digits, key.0.as_mut_slice()).map_err(|_| NotASealKey)?;
        Ok(key)
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey(..)")
    }
}

/// Bytes that are neither printed nor left in memory.
#[derive(Clone)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// The bytes themselves: for the one place that sends or seals them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Why a sealed value does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    #[error("a sealed credential is cut off")]
    Short,
    /// Another key, another credential or revision, or changed bytes: which one cannot be told.
    #[error("a sealed credential does not open under this Envoy's seal key")]
    Forged,
}

/// Seals `plain` for the Envoy that has `key`: nonce, then ciphertext. A nonce must never be used twice under one key.
pub fn seal(key: &SealKey, nonce: [u8; NONCE_BYTES], era: u64, id: u32, revision: u64, plain: &[u8]) -> Vec<u8> {
    let aad = associated(era, id, revision);
    #[expect(clippy::expect_used, reason = "only a text of 256 GiB is refused (RFC 8439, 2.8)")]
    let ciphertext = cipher(key)
        .encrypt(&Nonce::from(nonce), Payload { msg: plain, aad: &aad })
        .expect("a credential is shorter than 256 GiB");
    [nonce.as_slice(), &ciphertext].concat()
}

/// Opens what [`seal`] made for the same key, era, credential and revision.
pub fn open(key: &SealKey, era: u64, id: u32, revision: u64, sealed: &[u8]) -> Result<Secret, SealError> {
    let (nonce, ciphertext) = sealed.split_first_chunk::<NONCE_BYTES>().ok_or(SealError::Short)?;
    let aad = associated(era, id, revision);
    let plain = cipher(key).decrypt(&Nonce::from(*nonce), Payload { msg: ciphertext, aad: &aad });
    plain.map(Secret::new).map_err(|_| SealError::Forged)
}

fn cipher(key: &SealKey) -> ChaCha20Poly1305 {
    let mut copy = Key::from(*key.0);
    let cipher = ChaCha20Poly1305::new(&copy);
    copy.zeroize();
    cipher
}

fn associated(era: u64, id: u32, revision: u64) -> Vec<u8> {
    [era.to_le_bytes().as_slice(), &id.to_le_bytes(), &revision.to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGITS: &[u8] = b"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1F";

    #[test]
    fn what_was_sealed_opens_under_the_same_key_and_names_alone() {
        let key = SealKey::parse(DIGITS).unwrap();
        let sealed = seal(&key, [7; 12], 1, 2, 3, b"sk-upstream");
        assert_eq!(open(&key, 1, 2, 3, &sealed).unwrap().expose(), b"sk-upstream");
        let refused = |key: &SealKey, sealed: &[u8]| open(key, 1, 2, 3, sealed).unwrap_err();
        for (era, id, revision) in [(9, 2, 3), (1, 9, 3), (1, 2, 9)] {
            assert_eq!(open(&key, era, id, revision, &sealed).unwrap_err(), SealError::Forged);
        }
        assert_eq!(refused(&SealKey::new([0; 32]), &sealed), SealError::Forged);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(refused(&key, &changed), SealError::Forged, "byte {at}");
        }
        assert_eq!(refused(&key, &sealed[..11]), SealError::Short);
        assert_eq!(refused(&key, &sealed[..12]), SealError::Forged);
    }

    #[test]
    fn a_seal_key_is_64_hexadecimal_digits() {
        assert!(SealKey::parse(DIGITS).is_ok());
        for wrong in [&DIGITS[..62], &DIGITS[..63], b"", &[b'g'; 64]] {
            assert_eq!(SealKey::parse(wrong).unwrap_err(), NotASealKey);
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let secret = Secret::new(b"sk-upstream".to_vec());
        assert_eq!(format!("{secret} {secret:?} {:?}", SealKey::new([1; 32])), "[secret] Secret(..) SealKey(..)");
    }
}
