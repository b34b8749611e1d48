use std::fmt;

use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

/// A text that is never printed, and wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The text, for the one place that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether a header can carry it as it is: one line of visible ASCII, from 1 to 8192 bytes.
    pub fn is_header_safe(&self) -> bool {
        (1..=8192).contains(&self.0.len()) && self.0.bytes().all(|b| b.is_ascii_graphic())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}
