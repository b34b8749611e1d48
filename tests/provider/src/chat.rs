//! OpenAI chat completions, as events and as one object.
//! Source of the shapes: <https://platform.openai.com/docs/api-reference/chat>

use bytes::Bytes;

/// A completion. Its ids and times are constants.
#[derive(Clone, Debug)]
pub struct Chat {
    pub text: Text,
    /// Deltas of `reasoning_content`, before the text.
    pub reasoning: Vec<String>,
    /// Parallel calls, streamed interleaved.
    pub tool_calls: Vec<ToolCall>,
    pub usage: ReportedUsage,
    pub usage_on: UsageOn,
    /// Ends a stream with `data: [DONE]`.
    pub done: bool,
    /// In a stream: after so many content deltas this error object is sent and nothing follows.
    pub error_after: Option<(usize, String)>,
    /// How many choices with the same text.
    pub choices: u32,
    /// An SSE comment before each event, as keep-alives of some servers.
    pub comments: bool,
}

/// Content deltas.
#[derive(Clone, Debug)]
pub enum Text {
    Deltas(Vec<String>),
    /// `count` times the same delta; made one by one, so it may be huge.
    Repeat {
        delta: String,
        count: usize,
    },
}

#[derive(Clone, Debug)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    /// Deltas of the arguments.
    pub arguments: Vec<String>,
}

/// The `usage` object, in OpenAI's terms: `prompt` includes `cached`, `completion` includes `reasoning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedUsage {
    pub prompt: u64,
    pub cached: u64,
    pub completion: u64,
    pub reasoning: u64,
}

/// Where a stream reports its usage. A whole reply reports it unless [`UsageOn::Never`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UsageOn {
    /// As OpenAI: an own last chunk without choices where `include_usage` asks for it, `null` on each other chunk.
    #[default]
    Asked,
    /// The own chunk where asked, nothing on the others.
    AskedWithoutNulls,
    /// On the last chunk that has choices, asked or not.
    LastContent,
    /// The own chunk, asked or not.
    Always,
    /// On every chunk so far, cumulative, and on the own last one.
    Each,
    Never,
}

impl Default for ReportedUsage {
    fn default() -> Self {
        Self { prompt: 12, cached: 0, completion: 7, reasoning: 0 }
    }
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            text: Text::Deltas(["Hello", " from", " the", " scripted", " provider", ".", ""].map(str::to_owned).into()),
            reasoning: Vec::new(),
            tool_calls: Vec::new(),
            usage: ReportedUsage::default(),
            usage_on: UsageOn::default(),
            done: true,
            error_after: None,
            choices: 1,
            comments: false,
        }
    }
}

/// What of the request shapes the reply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub model: String,
    pub stream: bool,
    pub include_usage: bool,
    pub tools: bool,
}

const ID: &str = "chatcmpl-scripted";
const CREATED: u64 = 1_760_000_000;

impl Chat {
    pub fn text(deltas: &[&str]) -> Self {
        Self { text: Text::Deltas(deltas.iter().map(|s| (*s).to_owned()).collect()), ..Self::default() }
    }

    /// `count` times `delta`; the usage says `count` completion tokens.
    pub fn repeat(delta: &str, count: usize) -> Self {
        let usage = ReportedUsage { completion: count as u64, ..ReportedUsage::default() };
        Self { text: Text::Repeat { delta: delta.to_owned(), count }, usage, ..Self::default() }
    }

    pub fn usage(mut self, usage: ReportedUsage) -> Self {
        self.usage = usage;
        self
    }

    pub fn usage_on(mut self, on: UsageOn) -> Self {
        self.usage_on = on;
        self
    }

    /// The whole reply to a request for `model`, as bytes made once; for [`crate::Script::canned`].
    pub fn canned(&self, model: &str) -> crate::Answer {
        crate::Answer::json(200, self.whole(&Asked { model: model.to_owned(), ..Asked::default() }))
    }

    /// The body of a reply that is not streamed.
    pub(crate) fn whole(&self, asked: &Asked) -> Bytes {
        let text: String = self.text.deltas().collect();
        let calls: Vec<String> = self
            .tool_calls
            .iter()
            .map(|c| {
                let arguments = quote(&c.arguments.concat());
                format!(
                    r#"{{"id":{},"type":"function","function":{{"name":{},"arguments":{arguments}}}}}"#,
                    quote(&c.id),
                    quote(&c.name)
                )
            })
            .collect();
        let mut message = r#"{"role":"assistant","content":"#.to_owned();
        message += &if calls.is_empty() { quote(&text) } else { "null".to_owned() };
        if !self.reasoning.is_empty() {
            message += &format!(r#","reasoning_content":{}"#, quote(&self.reasoning.concat()));
        }
        if !calls.is_empty() {
            message += &format!(r#","tool_calls":[{}]"#, calls.join(","));
        }
        message += r#","refusal":null,"annotations":[]}"#;
        let finish = self.finish();
        let choices: Vec<String> = (0..self.choices)
            .map(|i| format!(r#"{{"index":{i},"message":{message},"logprobs":null,"finish_reason":"{finish}"}}"#))
            .collect();
        let usage = match self.usage_on {
            UsageOn::Never => String::new(),
            _ => format!(r#","usage":{}"#, self.usage.json()),
        };
        let (model, choices) = (quote(&asked.model), choices.join(","));
        format!(
            r#"{{"id":"{ID}","object":"chat.completion","created":{CREATED},"model":{model},"choices":[{choices}]{usage},"service_tier":"default","system_fingerprint":"fp_scripted"}}"#
        )
        .into()
    }

    /// The events of a stream, each with the empty line that ends it, lines ended by `\n`.
    pub(crate) fn events(&self, asked: &Asked) -> Box<dyn Iterator<Item = String> + Send> {
        let envelope = Envelope::new(self, asked);
        let chat = self.clone();
        let opening = (0..chat.choices).map(|i| (i, r#"{"role":"assistant","content":"","refusal":null}"#.to_owned()));
        let reasoning = chat.reasoning.clone().into_iter().map(|d| format!(r#"{{"reasoning_content":{}}}"#, quote(&d)));
        let tools = tool_deltas(&chat.tool_calls).into_iter();
        let cut = chat.error_after.as_ref().map_or(usize::MAX, |(n, _)| *n);
        let text = chat.text.clone().into_deltas().take(cut).map(|d| format!(r#"{{"content":{}}}"#, quote(&d)));
        let choices = chat.choices;
        let deltas = opening
            .chain(reasoning.chain(tools).chain(text).flat_map(move |d| (0..choices).map(move |i| (i, d.clone()))));
        let body = {
            let envelope = envelope.clone();
            deltas.map(move |(i, delta)| envelope.delta(i, &delta))
        };
        match chat.error_after {
            Some((_, error)) => Box::new(body.chain(std::iter::once(format!("data: {error}\n\n")))),
            None => Box::new(body.chain(envelope.ending(choices, chat.finish(), chat.done))),
        }
    }

    fn finish(&self) -> &'static str {
        if self.tool_calls.is_empty() { "stop" } else { "tool_calls" }
    }
}

/// What every chunk of one stream has in common.
#[derive(Clone)]
struct Envelope {
    model: String,
    usage: String,
    on: UsageOn,
    asked: bool,
    comment: &'static str,
}

impl Envelope {
    fn new(chat: &Chat, asked: &Asked) -> Self {
        Self {
            model: quote(&asked.model),
            usage: chat.usage.json(),
            on: chat.usage_on,
            asked: asked.include_usage,
            comment: if chat.comments { ": keep-alive\n\n" } else { "" },
        }
    }

    fn chunk(&self, choices: &str, usage: Option<&str>) -> String {
        let usage = usage.map_or(String::new(), |u| format!(r#","usage":{u}"#));
        let (comment, model) = (self.comment, &self.model);
        format!(
            "{comment}data: {{\"id\":\"{ID}\",\"object\":\"chat.completion.chunk\",\"created\":{CREATED},\"model\":{model},\"service_tier\":\"default\",\"system_fingerprint\":\"fp_scripted\",\"choices\":[{choices}]{usage}}}\n\n"
        )
    }

    fn delta(&self, choice: u32, delta: &str) -> String {
        let usage = match self.on {
            UsageOn::Asked if self.asked => Some("null"),
            UsageOn::Each => Some(r#"{"prompt_tokens":12,"completion_tokens":1,"total_tokens":13}"#),
            _ => None,
        };
        self.chunk(&format!(r#"{{"index":{choice},"delta":{delta},"logprobs":null,"finish_reason":null}}"#), usage)
    }

    fn ending(self, choices: u32, finish: &'static str, done: bool) -> impl Iterator<Item = String> + Send {
        let own = match self.on {
            UsageOn::Asked | UsageOn::AskedWithoutNulls => self.asked,
            UsageOn::Always | UsageOn::Each => true,
            UsageOn::LastContent | UsageOn::Never => false,
        };
        let last = match self.on {
            UsageOn::LastContent => Some(self.usage.clone()),
            UsageOn::Asked if self.asked => Some("null".to_owned()),
            _ => None,
        };
        let usage = own.then(|| self.chunk("", Some(&self.usage)));
        let stops = (0..choices).map(move |i| {
            let usage = last.as_deref().filter(|u| *u == "null" || i + 1 == choices);
            self.chunk(&format!(r#"{{"index":{i},"delta":{{}},"logprobs":null,"finish_reason":"{finish}"}}"#), usage)
        });
        stops.chain(usage).chain(done.then(|| "data: [DONE]\n\n".to_owned()))
    }
}

impl Text {
    fn deltas(&self) -> Box<dyn Iterator<Item = String> + Send> {
        self.clone().into_deltas()
    }

    fn into_deltas(self) -> Box<dyn Iterator<Item = String> + Send> {
        match self {
            Self::Deltas(deltas) => Box::new(deltas.into_iter()),
            Self::Repeat { delta, count } => Box::new(std::iter::repeat_n(delta, count)),
        }
    }
}

impl ReportedUsage {
    pub(crate) fn json(&self) -> String {
        let Self { prompt, cached, completion, reasoning } = self;
        let total = prompt + completion;
        format!(
            r#"{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{total},"prompt_tokens_details":{{"cached_tokens":{cached},"audio_tokens":0}},"completion_tokens_details":{{"reasoning_tokens":{reasoning},"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}}"#
        )
    }
}

/// Names first, then the arguments of all calls in turns.
fn tool_deltas(calls: &[ToolCall]) -> Vec<String> {
    let mut deltas = Vec::new();
    for (i, call) in calls.iter().enumerate() {
        let (id, name) = (quote(&call.id), quote(&call.name));
        deltas.push(format!(
            r#"{{"tool_calls":[{{"index":{i},"id":{id},"type":"function","function":{{"name":{name},"arguments":""}}}}]}}"#
        ));
    }
    let longest = calls.iter().map(|c| c.arguments.len()).max().unwrap_or(0);
    for turn in 0..longest {
        for (i, call) in calls.iter().enumerate() {
            if let Some(part) = call.arguments.get(turn) {
                let part = quote(part);
                deltas.push(format!(r#"{{"tool_calls":[{{"index":{i},"function":{{"arguments":{part}}}}}]}}"#));
            }
        }
    }
    deltas
}

/// `text` as a JSON string.
pub(crate) fn quote(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(stream: bool, include_usage: bool) -> Asked {
        Asked { model: "m\"1".into(), stream, include_usage, tools: false }
    }

    fn parsed(chat: &Chat, asked: &Asked) -> Vec<serde_json::Value> {
        chat.events(asked)
            .filter_map(|e| {
                let data = e.trim_end().rsplit("data: ").next().unwrap().to_owned();
                (data != "[DONE]").then(|| serde_json::from_str(&data).unwrap())
            })
            .collect()
    }

    #[test]
    fn whole_reply_parses() {
        let chat = Chat {
            tool_calls: vec![ToolCall { id: "c1".into(), name: "f".into(), arguments: vec!["{".into(), "}".into()] }],
            reasoning: vec!["hm".into()],
            ..Chat::default()
        };
        let v: serde_json::Value = serde_json::from_slice(&chat.whole(&asked(false, false))).unwrap();
        assert_eq!(v["model"], "m\"1");
        assert_eq!(v["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{}");
        assert_eq!(v["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(v["usage"]["total_tokens"], 19);
    }

    #[test]
    fn usage_comes_where_it_was_asked_for() {
        let chat = Chat::text(&["a", "b"]);
        let quiet = parsed(&chat, &asked(true, false));
        assert!(quiet.iter().all(|v| v.get("usage").is_none()));
        let loud = parsed(&chat, &asked(true, true));
        let (last, others) = loud.split_last().unwrap();
        assert_eq!(last["choices"].as_array().unwrap().len(), 0);
        assert_eq!(last["usage"]["completion_tokens"], 7);
        assert!(others.iter().all(|v| v["usage"].is_null() && v.get("usage").is_some()));

        let on_content = parsed(&chat.clone().usage_on(UsageOn::LastContent), &asked(true, false));
        let last = on_content.last().unwrap();
        assert_eq!(
            (last["choices"][0]["finish_reason"].as_str(), last["usage"]["prompt_tokens"].as_u64()),
            (Some("stop"), Some(12))
        );
        let never = parsed(&chat.usage_on(UsageOn::Never), &asked(true, true));
        assert!(never.iter().all(|v| v.get("usage").is_none()));
    }

    #[test]
    fn parallel_calls_are_interleaved() {
        let call = |id: &str, parts: &[&str]| ToolCall {
            id: id.into(),
            name: "f".into(),
            arguments: parts.iter().map(|s| (*s).to_owned()).collect(),
        };
        let chat = Chat {
            text: Text::Deltas(vec![]),
            tool_calls: vec![call("a", &["1", "2"]), call("b", &["x", "y"])],
            ..Chat::default()
        };
        let order: Vec<u64> = parsed(&chat, &asked(true, false))
            .iter()
            .filter_map(|v| v["choices"][0]["delta"]["tool_calls"][0]["index"].as_u64())
            .collect();
        assert_eq!(order, [0, 1, 0, 1, 0, 1]);
    }

    #[test]
    fn an_error_event_ends_the_stream() {
        let chat = Chat { error_after: Some((1, r#"{"error":{"message":"boom"}}"#.into())), ..Chat::text(&["a", "b"]) };
        let events: Vec<String> = chat.events(&asked(true, true)).collect();
        assert_eq!(events.len(), 3);
        assert!(events[2].contains("boom"));
    }
}
