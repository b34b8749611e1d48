//! What came in, as it came.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hyper::{HeaderMap, Version};
use tokio::sync::watch;

/// Requests kept with their bodies; whatever comes beyond either bound is only counted.
const KEEP_REQUESTS: usize = 100_000;
const KEEP_BYTES: usize = 256 << 20;

/// One request as it was received.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub version: Version,
    /// In order of arrival per name; HTTP/1 names are in lower case. `:authority` of HTTP/2 is `host` here.
    pub headers: HeaderMap,
    pub body: Bytes,
    /// False where the sender left in the middle of the body.
    pub complete: bool,
    /// Number of the connection it came on.
    pub connection: u64,
    progress: Arc<watch::Sender<Progress>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    delivered: u64,
    fate: Option<Fate>,
}

/// How an answer ended, seen from the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All of it was handed to the socket.
    Delivered,
    /// The script cut it.
    Cut,
    /// The peer went away before its end.
    Abandoned,
}

impl Recorded {
    /// The text of a header; `None` when absent or not text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The body as JSON; null where it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Body bytes handed over so far.
    pub fn delivered_bytes(&self) -> u64 {
        self.progress.borrow().delivered
    }

    /// Waits for the end of the answer.
    pub async fn fate(&self) -> Fate {
        let mut progress = self.progress.subscribe();
        match progress.wait_for(|p| p.fate.is_some()).await {
            Ok(p) => p.fate.unwrap_or(Fate::Abandoned),
            Err(_) => Fate::Abandoned,
        }
    }
}

/// Follows one answer; dropped early it says that the peer left.
#[derive(Debug)]
pub(crate) struct Watcher(Option<Arc<watch::Sender<Progress>>>);

impl Watcher {
    /// For answers that nobody follows.
    pub fn nobody() -> Self {
        Self(None)
    }

    pub fn delivered(&self, bytes: usize) {
        if let Some(progress) = &self.0 {
            progress.send_modify(|p| p.delivered += bytes as u64);
        }
    }

    pub fn ended(&mut self, fate: Fate) {
        if let Some(progress) = self.0.take() {
            progress.send_modify(|p| p.fate = Some(fate));
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.ended(Fate::Abandoned);
    }
}

#[derive(Debug, Default)]
struct Kept {
    requests: Vec<Recorded>,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Recorder {
    on: bool,
    kept: Mutex<Kept>,
    count: watch::Sender<u64>,
}

impl Recorder {
    pub fn new(on: bool) -> Self {
        Self { on, kept: Mutex::default(), count: watch::Sender::new(0) }
    }

    pub fn is_on(&self) -> bool {
        self.on
    }

    pub fn keep(&self, parts: &hyper::http::request::Parts, body: Bytes, complete: bool, connection: u64) -> Watcher {
        let mut headers = parts.headers.clone();
        if let (Some(authority), false) = (parts.uri.authority(), headers.contains_key("host"))
            && let Ok(value) = authority.as_str().parse()
        {
            headers.insert("host", value);
        }
        let progress = Arc::new(watch::Sender::default());
        let recorded = Recorded {
            method: parts.method.to_string(),
            target: parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            version: parts.version,
            headers,
            body,
            complete,
            connection,
            progress: progress.clone(),
        };
        {
            let mut kept = self.lock();
            if kept.requests.len() < KEEP_REQUESTS && kept.bytes + recorded.body.len() <= KEEP_BYTES {
                kept.bytes += recorded.body.len();
                kept.requests.push(recorded);
            }
        }
        self.count.send_modify(|n| *n += 1);
        Watcher(Some(progress))
    }

    pub fn count_only(&self) -> Watcher {
        self.count.send_modify(|n| *n += 1);
        Watcher(None)
    }

    pub fn all(&self) -> Vec<Recorded> {
        self.lock().requests.clone()
    }

    pub fn clear(&self) {
        *self.lock() = Kept::default();
        self.count.send_replace(0);
    }

    pub fn count(&self) -> u64 {
        *self.count.borrow()
    }

    pub async fn wait_for(&self, n: u64) {
        let mut count = self.count.subscribe();
        // The sender lives in self, so the wait cannot fail.
        let _ = count.wait_for(|seen| *seen >= n).await;
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
