//! Randomness of the operating system.

use super::KeyringError;

/// # Errors
/// When the operating system has none.
pub fn bytes<const N: usize>() -> Result<[u8; N], KeyringError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|e| KeyringError::Randomness(e.to_string()))?;
    Ok(bytes)
}

/// `N` characters of 5 random bits each, easy to read out: no 0, 1, 8, 9 and lower case only.
///
/// # Errors
/// When the operating system has none.
pub fn base32<const N: usize>() -> Result<String, KeyringError> {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let letter = |byte: u8| ALPHABET.get(usize::from(byte % 32)).map_or('a', |letter| char::from(*letter));
    Ok(bytes::<N>()?.into_iter().map(letter).collect())
}
