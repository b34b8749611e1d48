//! The nouns, one file each.

mod money;
mod owner;
mod price;
mod usage;

pub use money::Nano;
pub use owner::{Owner, OwnerKind};
pub use price::{Price, PriceError, Tier};
pub use usage::{Source, Usage};
