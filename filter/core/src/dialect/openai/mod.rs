//! OpenAI: chat completions, embeddings, models.
//!
//! Requests and replies keep their bytes: what must change is edited in place, what is metered is read as it passes.

mod delta;
pub mod error;
pub mod estimate;
pub mod models;
pub mod reply;
pub mod request;
pub mod routes;
pub mod stream;
mod usage;

/// What a metered route does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    ChatCompletions,
    Embeddings,
}
