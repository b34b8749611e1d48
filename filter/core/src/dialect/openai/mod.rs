//! OpenAI: chat completions, embeddings, models.

pub mod error;
