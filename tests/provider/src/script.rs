//! Which request gets which answer.

use std::collections::VecDeque;

use bytes::Bytes;
use hyper::http::request::Parts;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::answer::{Answer, Content};
use crate::chat::Asked;

/// Rules in order; the first that matches answers, else [`Script::otherwise`].
#[derive(Clone, Debug, Default)]
pub struct Script {
    rules: Vec<Rule>,
    otherwise: Answer,
    bearer: Option<String>,
    canned: bool,
}

/// What a request must look like, and its answer.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    model: Option<String>,
    path: Option<String>,
    headers: Vec<(String, String)>,
    tools: bool,
    /// Answers left; used up in order, the last one stays.
    answers: VecDeque<Answer>,
    times: Option<u32>,
}

impl Script {
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything gets `answer`.
    pub fn always(answer: impl Into<Answer>) -> Self {
        Self { otherwise: answer.into(), ..Self::default() }
    }

    /// The fast path of a bench: this body to every request, which is neither parsed nor recorded.
    pub fn canned(answer: Answer) -> Self {
        Self { otherwise: answer, canned: true, ..Self::default() }
    }

    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Goes before all other rules.
    pub fn first(&mut self, rule: Rule) {
        self.rules.insert(0, rule);
    }

    /// Requests for this model get this answer.
    pub fn model(self, model: &str, answer: impl Into<Answer>) -> Self {
        self.rule(Rule::default().model(model).answer(answer))
    }

    pub fn otherwise(mut self, answer: impl Into<Answer>) -> Self {
        self.otherwise = answer.into();
        self
    }

    /// Only `Authorization: Bearer <secret>` is let in, everything else is a 401 in OpenAI's words.
    pub fn require_bearer(mut self, secret: &str) -> Self {
        self.bearer = Some(format!("Bearer {secret}"));
        self
    }

    pub(crate) fn is_canned(&self) -> bool {
        self.canned
    }

    pub(crate) fn canned_answer(&self) -> &Answer {
        &self.otherwise
    }

    /// The answer to this request; rules that are used up step aside.
    pub(crate) fn choose(&mut self, parts: &Parts, asked: &Asked) -> Answer {
        if let Some(bearer) = &self.bearer
            && parts.headers.get("authorization").map(|v| v.as_bytes()) != Some(bearer.as_bytes())
        {
            return Answer::error(401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key");
        }
        for rule in &mut self.rules {
            if rule.matches(parts, asked)
                && let Some(answer) = rule.take()
            {
                return answer;
            }
        }
        self.otherwise.clone()
    }
}

impl Rule {
    pub fn any() -> Self {
        Self::default()
    }

    pub fn model(mut self, model: &str) -> Self {
        self.model = Some(model.to_owned());
        self
    }

    /// The path without its query.
    pub fn path(mut self, path: &str) -> Self {
        self.path = Some(path.to_owned());
        self
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Only requests that offer tools.
    pub fn with_tools(mut self) -> Self {
        self.tools = true;
        self
    }

    /// The next answer of this rule; several are given in turn, the last one for good.
    pub fn answer(mut self, answer: impl Into<Answer>) -> Self {
        self.answers.push_back(answer.into());
        self
    }

    /// Steps aside after so many answers.
    pub fn times(mut self, n: u32) -> Self {
        self.times = Some(n);
        self
    }

    fn matches(&self, parts: &Parts, asked: &Asked) -> bool {
        self.times != Some(0)
            && self.model.as_ref().is_none_or(|m| *m == asked.model)
            && self.path.as_ref().is_none_or(|p| p == parts.uri.path())
            && (!self.tools || asked.tools)
            && self.headers.iter().all(|(n, v)| parts.headers.get_all(n).iter().any(|h| h.as_bytes() == v.as_bytes()))
    }

    fn take(&mut self) -> Option<Answer> {
        let answer = if self.answers.len() > 1 { self.answers.pop_front() } else { self.answers.front().cloned() }?;
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
        Some(answer)
    }
}

/// The fields of a request body that shape the answer; what is no JSON object asks for nothing.
pub(crate) fn asked(body: &Bytes) -> Asked {
    #[derive(Deserialize, Default)]
    struct Body {
        #[serde(default)]
        model: String,
        stream: Option<bool>,
        stream_options: Option<StreamOptions>,
        tools: Option<Vec<serde::de::IgnoredAny>>,
    }
    #[derive(Deserialize)]
    struct StreamOptions {
        include_usage: Option<bool>,
    }
    let body: Body = serde_json::from_slice(body).unwrap_or_default();
    let include_usage = body.stream_options.and_then(|o| o.include_usage).unwrap_or(false);
    let tools = body.tools.is_some_and(|t| !t.is_empty());
    Asked { model: body.model, stream: body.stream.unwrap_or(false), include_usage, tools }
}

/// The body of a reply to `POST /v1/embeddings`.
pub(crate) fn embeddings(body: &Bytes, prompt_tokens: u64) -> Bytes {
    #[derive(Deserialize)]
    struct Body<'a> {
        model: String,
        #[serde(borrow)]
        input: &'a RawValue,
        dimensions: Option<usize>,
        encoding_format: Option<String>,
    }
    let Ok(body) = serde_json::from_slice::<Body<'_>>(body) else {
        return Bytes::from_static(b"{\"error\":{\"message\":\"no such input\"}}");
    };
    let inputs: Vec<String> = match serde_json::from_str::<Vec<serde_json::Value>>(body.input.get()) {
        Ok(many) => many.iter().map(ToString::to_string).collect(),
        Err(_) => vec![body.input.get().to_owned()],
    };
    let size = body.dimensions.unwrap_or(8);
    let base64 = body.encoding_format.as_deref() == Some("base64");
    let data: Vec<String> = inputs
        .iter()
        .enumerate()
        .map(|(i, text)| {
            let vector = vector(text, size);
            let embedding = if base64 {
                let raw: Vec<u8> = vector.iter().flat_map(|f| f.to_le_bytes()).collect();
                serde_json::Value::from(to_base64(&raw)).to_string()
            } else {
                serde_json::to_string(&vector).unwrap_or_default()
            };
            format!(r#"{{"object":"embedding","index":{i},"embedding":{embedding}}}"#)
        })
        .collect();
    let (data, model) = (data.join(","), crate::chat::quote(&body.model));
    format!(r#"{{"object":"list","data":[{data}],"model":{model},"usage":{{"prompt_tokens":{prompt_tokens},"total_tokens":{prompt_tokens}}}}}"#).into()
}

/// Numbers in [-1, 1] that follow from the text.
fn vector(text: &str, size: usize) -> Vec<f32> {
    let seed = text.bytes().fold(17_u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    (0..size).map(|i| (seed.wrapping_mul(i as u32 + 1) % 2001) as f32 / 1000.0 - 1.0).collect()
}

fn to_base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = group.iter().enumerate().fold(0_u32, |n, (i, b)| n | u32::from(*b) << (16 - 8 * i));
        for i in 0..4 {
            let digit = ALPHABET.get((bits >> (18 - 6 * i) & 63) as usize).copied().unwrap_or(b'=');
            text.push(if i <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The body of `GET /v1/models`, or of `GET /v1/models/{id}`.
pub(crate) fn models(ids: &[String], path: &str) -> (u16, Bytes) {
    let one = |id: &str| {
        let id = crate::chat::quote(id);
        format!(r#"{{"id":{id},"object":"model","created":1760000000,"owned_by":"scripted"}}"#)
    };
    match path.strip_prefix("/v1/models/") {
        Some(id) if ids.iter().any(|known| known == id) => (200, one(id).into()),
        Some(_) => (404, Bytes::from_static(b"{\"error\":{\"message\":\"no such model\",\"type\":\"invalid_request_error\",\"param\":\"model\",\"code\":\"model_not_found\"}}")),
        None => {
            let all: Vec<String> = ids.iter().map(|id| one(id)).collect();
            (200, format!(r#"{{"object":"list","data":[{}]}}"#, all.join(",")).into())
        }
    }
}

/// What [`Content::ByPath`] stands for.
pub(crate) fn by_path(path: &str) -> Option<Content> {
    // A prefix such as a vendor's own base path is no matter.
    if path.ends_with("/chat/completions") {
        return Some(Content::Chat(crate::Chat::default()));
    }
    if path.ends_with("/embeddings") {
        return Some(Content::Embeddings { prompt_tokens: 5 });
    }
    path.contains("/models").then(|| Content::Models(vec!["scripted-1".to_owned(), "scripted-2".to_owned()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standards() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(to_base64(plain.as_bytes()), coded);
        }
    }

    #[test]
    fn rules_go_in_order_and_step_aside() {
        let (parts, ()) =
            hyper::Request::builder().uri("/v1/x?a=b").header("x-case", "1").body(()).unwrap().into_parts();
        let mut script = Script::new()
            .rule(Rule::any().header("x-case", "2").answer(Answer::json(500, "")))
            .rule(Rule::any().path("/v1/x").times(2).answer(Answer::json(501, "")).answer(Answer::json(502, "")))
            .otherwise(Answer::json(203, ""));
        let asked = Asked::default();
        let statuses: Vec<u16> = (0..3).map(|_| script.choose(&parts, &asked).status).collect();
        assert_eq!(statuses, [501, 502, 203]);
    }
}
