//! Wire dialects, one folder each.

pub mod openai;
