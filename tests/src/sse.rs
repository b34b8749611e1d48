//! Server-sent events as a client meets them, each with the moment it was complete.

use std::time::Instant;

use anyhow::Result;

use crate::client::Reply;

/// One event.
#[derive(Clone, Debug)]
pub struct Event {
    /// When its last byte was there.
    pub at: Instant,
    /// The `data` lines, joined by newlines.
    pub data: String,
}

impl Event {
    /// Null where it is no JSON, as `[DONE]` is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.data).unwrap_or_default()
    }

    pub fn is_done(&self) -> bool {
        self.data == "[DONE]"
    }
}

/// The events of one reply. LF, CRLF and CR all end a line, as the standard says.
#[derive(Debug)]
pub struct Events {
    reply: Reply,
    decoder: Decoder,
}

impl Events {
    pub(crate) fn new(reply: Reply) -> Self {
        Self { reply, decoder: Decoder::default() }
    }

    /// The next event; `None` after an end in order, an error where the stream broke off.
    pub async fn next(&mut self) -> Result<Option<Event>> {
        loop {
            if let Some(event) = self.decoder.take() {
                return Ok(Some(event));
            }
            match self.reply.chunk().await? {
                Some(chunk) => self.decoder.push(&chunk, Instant::now()),
                None => return Ok(self.decoder.finish()),
            }
        }
    }

    /// All that are left.
    pub async fn rest(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await? {
            events.push(event);
        }
        Ok(events)
    }

    /// Closes the connection now.
    pub fn leave(self) {
        self.reply.leave();
    }

    pub fn reply(&self) -> &Reply {
        &self.reply
    }
}

/// Bytes to events. An event not ended by an empty line is given up at the end of the stream, as browsers do;
/// OpenAI's SDKs deliver it, so [`Decoder::finish`] does too.
#[derive(Debug, Default)]
pub struct Decoder {
    line: Vec<u8>,
    data: Vec<String>,
    after_cr: bool,
    ready: std::collections::VecDeque<Event>,
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8], at: Instant) {
        for byte in bytes {
            match byte {
                b'\n' if self.after_cr => self.after_cr = false,
                b'\n' | b'\r' => {
                    self.after_cr = *byte == b'\r';
                    self.end_line(at);
                }
                other => {
                    self.after_cr = false;
                    self.line.push(*other);
                }
            }
        }
    }

    pub fn take(&mut self) -> Option<Event> {
        self.ready.pop_front()
    }

    pub fn finish(&mut self) -> Option<Event> {
        if !self.line.is_empty() {
            self.end_line(Instant::now());
        }
        self.end_event(Instant::now());
        self.take()
    }

    fn end_line(&mut self, at: Instant) {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return self.end_event(at);
        }
        if let Some(data) = line.strip_prefix(b"data:") {
            let data = data.strip_prefix(b" ").unwrap_or(data);
            self.data.push(String::from_utf8_lossy(data).into_owned());
        }
    }

    fn end_event(&mut self, at: Instant) {
        if !self.data.is_empty() {
            let data = std::mem::take(&mut self.data).join("\n");
            self.ready.push_back(Event { at, data });
        }
    }
}

/// The text that an application makes of chat chunks.
pub fn text_of(events: &[Event]) -> String {
    let piece = |e: &Event| e.json().pointer("/choices/0/delta/content").and_then(|v| v.as_str().map(str::to_owned));
    events.iter().filter_map(piece).collect()
}
