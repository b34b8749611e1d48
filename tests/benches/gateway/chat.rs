//! What is asked and answered.

use anyhow::Result;

use scripted_provider::{Answer, Chat, Provider, Script, UsageOn};
use serde_json::json;

/// Of one stream: its opening, its words, its end, its usage and `[DONE]`.
pub const EVENTS: usize = 100;
/// Per stream, so that each event comes alone, as from a model.
const EVENTS_PER_SECOND: u32 = 500;

/// Answers everything with one completion of some 750 bytes.
pub async fn whole() -> Result<Provider> {
    Provider::start(Script::canned(Chat::repeat(" water", 56).canned("scripted-1"))).await
}

/// Answers everything with a stream of [`EVENTS`] events, whether the usage was asked for or not.
pub async fn stream() -> Result<Provider> {
    let chat = Chat::repeat(" water", EVENTS - 4).usage_on(UsageOn::Always);
    Provider::start(Script::always(Answer::from(chat).per_second(EVENTS_PER_SECOND))).await
}

/// A chat request of exactly `size` bytes.
pub fn request(model: &str, stream: bool, size: usize) -> String {
    let with = |text: &str| {
        let messages = json!([{"role": "system", "content": "Be short."}, {"role": "user", "content": text}]);
        json!({"model": model, "messages": messages, "temperature": 0.7, "stream": stream}).to_string()
    };
    let room = size.saturating_sub(with("").len());
    let text: String = "The water flows where the gate lets it. ".chars().cycle().take(room).collect();
    with(&text)
}
