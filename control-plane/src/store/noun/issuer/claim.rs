//! Where a claim stands in a token's payload.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::super::super::Fault;

/// A claim's name; for one inside of another, the names on the way: `email`, `[realm_access, roles]`. Dots and slashes are
/// part of a name.
#[derive(Clone, Debug, PartialEq, Eq, ToSchema)]
#[schema(value_type = Object)]
pub struct ClaimPath(pub Vec<String>);

const MAX_SEGMENTS: usize = 8;
const MAX_SEGMENT_BYTES: usize = 128;

impl ClaimPath {
    pub(super) fn check(&self, field: &str) -> Result<(), Fault> {
        if self.0.is_empty() || self.0.len() > MAX_SEGMENTS {
            return Err(Fault::new(field, format!("must have 1 to {MAX_SEGMENTS} names")));
        }
        let bad =
            |name: &String| name.is_empty() || name.len() > MAX_SEGMENT_BYTES || name.chars().any(char::is_control);
        match self.0.iter().find(|name| bad(name)) {
            Some(name) => Err(Fault::new(field, format!("{name:?} is no claim's name"))),
            None => Ok(()),
        }
    }
}

impl std::fmt::Display for ClaimPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

impl Serialize for ClaimPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [name] => serializer.serialize_str(name),
            path => serializer.collect_seq(path),
        }
    }
}

impl<'de> Deserialize<'de> for ClaimPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a claim's name, or a list of names that lead to it")]
        enum Written {
            Name(String),
            Path(Vec<String>),
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::Name(name) => Self(vec![name]),
            Written::Path(path) => Self(path),
        })
    }
}
