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

impl Operation {
    /// As metrics, headers and the ledger call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => "chat.completions",
            Self::Embeddings => "embeddings",
        }
    }
}

/// Whether a client's header is passed on to a provider. Everything else stays here: what Envoy and other proxies added,
/// cookies, and above all credentials.
pub fn forwards(name: &[u8]) -> bool {
    const NAMES: &[&[u8]] = &[
        b"accept",
        b"content-type",
        b"content-length",
        b"idempotency-key",
        b"openai-beta",
        b"openai-organization",
        b"openai-project",
        b"user-agent",
    ];
    // How OpenAI's SDKs describe themselves.
    name.starts_with(b"x-stainless-") || NAMES.contains(&name)
}
