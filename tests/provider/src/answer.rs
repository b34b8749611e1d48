//! What is answered, and how it is delivered.

use std::time::Duration;

use bytes::Bytes;

use crate::{Chat, Hold};

/// One answer. The default is a short chat completion, or what the path asks for, delivered at once.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub content: Content,
    pub delivery: Delivery,
}

#[derive(Clone, Debug)]
pub enum Content {
    /// A completion, streamed when the request says `stream: true`.
    Chat(Chat),
    /// One vector per input, made from the input's bytes; `dimensions` is honoured, 8 by default. Base64 when asked.
    Embeddings {
        prompt_tokens: u64,
    },
    /// The list of these ids, or the one that the path names.
    Models(Vec<String>),
    Raw {
        content_type: String,
        body: Bytes,
    },
    /// Whatever fits the path: [`Chat::default`], embeddings, models; 404 otherwise.
    ByPath,
}

/// How the bytes leave. The default: at once, each event in a write of its own, a whole body with its length.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// Before the response headers.
    pub headers: Wait,
    /// Between the headers and the first byte of the body.
    pub body: Wait,
    /// Between events (SSE events; a plain body is one event).
    pub between: Wait,
    pub pieces: Pieces,
    /// Between the pieces that [`Delivery::pieces`] makes.
    pub pace: Wait,
    pub newline: Newline,
    /// The last event comes without the empty line that ends it.
    pub no_final_newline: bool,
    pub cut: Option<Cut>,
    /// Compressed although nobody asked.
    pub gzip: bool,
    /// `transfer-encoding: chunked` also for a whole body.
    pub chunked: bool,
}

#[derive(Clone, Debug, Default)]
pub enum Wait {
    #[default]
    No,
    For(Duration),
    /// Until the test releases it.
    Hold(Hold),
    Forever,
}

/// Into which writes the body is split.
#[derive(Clone, Debug, Default)]
pub enum Pieces {
    #[default]
    Events,
    /// Everything in pieces of this many bytes, across events.
    Bytes(usize),
    /// Pieces of these sizes, over and over, across events.
    Sizes(Vec<usize>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Newline {
    #[default]
    Lf,
    CrLf,
    Cr,
}

/// The answer ends before its end.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// After this many bytes of the body as delivered.
    pub after_bytes: u64,
    pub how: CutHow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutHow {
    /// TCP reset. Over HTTP/2 the whole connection goes.
    Reset,
    /// The socket is closed in order, in the middle of the body. Over HTTP/2 the stream is reset.
    Close,
    /// The body ends in order, as if it were whole.
    End,
}

impl Default for Answer {
    fn default() -> Self {
        Self { status: 200, headers: Vec::new(), content: Content::ByPath, delivery: Delivery::default() }
    }
}

impl From<Chat> for Answer {
    fn from(chat: Chat) -> Self {
        Self { content: Content::Chat(chat), ..Self::default() }
    }
}

impl Answer {
    pub fn json(status: u16, body: impl Into<Bytes>) -> Self {
        Self::raw(status, "application/json", body)
    }

    pub fn raw(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        let content = Content::Raw { content_type: content_type.to_owned(), body: body.into() };
        Self { status, content, ..Self::default() }
    }

    /// An error as OpenAI words it.
    pub fn error(status: u16, message: &str, kind: &str, code: &str) -> Self {
        let body = serde_json::json!({"error": {"message": message, "type": kind, "param": null, "code": code}});
        Self::json(status, body.to_string())
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn deliver(mut self, change: impl FnOnce(&mut Delivery)) -> Self {
        change(&mut self.delivery);
        self
    }

    /// Waits at `hold` between the headers and the body.
    pub fn hold_body(self, hold: &Hold) -> Self {
        self.deliver(|d| d.body = Wait::Hold(hold.clone()))
    }

    /// Waits at `hold` before the headers.
    pub fn hold_headers(self, hold: &Hold) -> Self {
        self.deliver(|d| d.headers = Wait::Hold(hold.clone()))
    }

    /// Waits at `hold` before each event but the first.
    pub fn hold_events(self, hold: &Hold) -> Self {
        self.deliver(|d| d.between = Wait::Hold(hold.clone()))
    }

    /// Events at a steady rate.
    pub fn per_second(self, events: u32) -> Self {
        self.deliver(|d| d.between = Wait::For(Duration::from_secs(1) / events.max(1)))
    }

    pub fn cut(self, after_bytes: u64, how: CutHow) -> Self {
        self.deliver(|d| d.cut = Some(Cut { after_bytes, how }))
    }
}

impl Wait {
    pub(crate) async fn wait(&self) {
        match self {
            Self::No => {}
            Self::For(time) => tokio::time::sleep(*time).await,
            Self::Hold(hold) => hold.pass().await,
            Self::Forever => std::future::pending().await,
        }
    }
}

impl Newline {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::CrLf => "\r\n",
            Self::Cr => "\r",
        }
    }
}
