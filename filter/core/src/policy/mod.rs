//! The compiled rules one Envoy works by.

mod compile;
mod issuer;
pub mod names;

use std::collections::HashMap;

pub use compile::{CompileError, FEATURES, SNAPSHOT_VERSION};
pub use issuer::{Claim, Issuer};

use crate::noun::Price;

/// A compiled `Snapshot`: every reference resolved, every bound checked. Immutable; a new revision is a new `Policy`.
#[derive(Debug)]
pub struct Policy {
    pub revision: u64,
    pub limits: Limits,
    models: HashMap<String, Model>,
    backends: HashMap<u32, Backend>,
    /// By the `iss` claim.
    issuers: HashMap<String, Issuer>,
}

/// Bounds that hold for every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_body_bytes: u64,
    /// How long after the last mark known keys are still served.
    pub max_staleness_ms: u64,
}

/// What holds where a policy says nothing, and before there is one.
impl Default for Limits {
    fn default() -> Self {
        Self { max_body_bytes: 32 << 20, max_staleness_ms: 3_600_000 }
    }
}

/// What a client asks for by name.
#[derive(Debug)]
pub struct Model {
    pub id: u32,
    pub name: String,
    lists: Vec<List>,
    total_weight: u64,
}

/// An ordered list of positions and the Envoy cluster that stands for it.
#[derive(Debug)]
pub struct List {
    pub weight: u32,
    /// Name of the aggregate cluster, a hash of the positions: it never changes meaning.
    pub cluster: String,
    pub positions: Vec<Position>,
}

/// A backend and the credential that pays for it; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub backend: u32,
    pub credential: u32,
}

/// A provider and the model it is asked for.
#[derive(Debug)]
pub struct Backend {
    pub id: u32,
    /// `<provider>/<model>`.
    pub name: String,
    pub provider: String,
    pub dialect: Dialect,
    pub authority: String,
    /// Prefix before the dialect's own path, without a trailing slash.
    pub path: String,
    /// The provider's own name of the model.
    pub model: String,
    /// `None`: unpriced, which is not free.
    pub price: Option<Price>,
}

/// The wire dialects a backend can speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
}

impl Policy {
    pub fn model(&self, name: &str) -> Option<&Model> {
        self.models.get(name)
    }

    /// In no particular order.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        self.models.values()
    }

    pub fn backend(&self, id: u32) -> Option<&Backend> {
        self.backends.get(&id)
    }

    /// By the `iss` claim of its tokens.
    pub fn issuer(&self, iss: &str) -> Option<&Issuer> {
        self.issuers.get(iss)
    }

    /// In no particular order.
    pub fn issuers(&self) -> impl Iterator<Item = &Issuer> {
        self.issuers.values()
    }
}

impl Model {
    /// The list that `random` (uniform over `u64`) draws by weight.
    pub fn draw(&self, random: u64) -> &List {
        // Multiply-shift maps a uniform u64 to 0..total without a division; `total_weight` is at least 1.
        let mut left = (u128::from(random) * u128::from(self.total_weight)) >> 64;
        for list in &self.lists {
            let weight = u128::from(list.weight);
            if left < weight {
                return list;
            }
            left -= weight;
        }
        self.first()
    }

    pub fn lists(&self) -> &[List] {
        &self.lists
    }

    #[expect(clippy::indexing_slicing, reason = "compile refuses a model without lists")]
    fn first(&self) -> &List {
        &self.lists[0]
    }
}
