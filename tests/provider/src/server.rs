//! The listening end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::answer::{Answer, Content, Wait};
use crate::chat::Asked;
use crate::deliver::{self, CutShort, Events};
use crate::record::{Fate, Recorded, Recorder, Watcher};
use crate::script::{self, Script};
use crate::socket::{ResetOnDrop, Socket};

/// Where and how to listen.
#[derive(Clone, Debug)]
pub struct Listen {
    pub addr: SocketAddr,
    /// `None`: plain text (HTTP/1.1, and HTTP/2 with prior knowledge).
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

impl Default for Listen {
    fn default() -> Self {
        Self { addr: SocketAddr::from(([127, 0, 0, 1], 0)), tls: None }
    }
}

/// A running provider; dropped, it and its connections end.
#[derive(Debug)]
pub struct Provider {
    addr: SocketAddr,
    tls: bool,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    script: Mutex<Script>,
    /// A copy of the script's answer where it is canned: no lock on the fast path.
    canned: Option<Answer>,
    recorder: Recorder,
    connections: AtomicU64,
}

type Body = UnsyncBoxBody<Bytes, CutShort>;

impl Provider {
    /// On a free port of the loopback, in plain text.
    pub async fn start(script: Script) -> Result<Self> {
        Self::start_on(Listen::default(), script).await
    }

    pub async fn start_on(listen: Listen, script: Script) -> Result<Self> {
        let listener = TcpListener::bind(listen.addr).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            canned: script.is_canned().then(|| script.canned_answer().clone()),
            recorder: Recorder::new(!script.is_canned()),
            script: Mutex::new(script),
            connections: AtomicU64::new(0),
        });
        let tls = listen.tls.is_some();
        let task = tokio::spawn(accept(listener, listen.tls.map(TlsAcceptor::from), shared.clone()));
        Ok(Self { addr, tls, shared, task })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http(s)://127.0.0.1:<port>/v1`.
    pub fn base_url(&self) -> String {
        format!("http{}://{}/v1", if self.tls { "s" } else { "" }, self.addr)
    }

    /// Requests from now on are answered by this script. A provider that started canned stays so.
    pub fn script(&self, script: Script) {
        *self.shared.script.lock().unwrap_or_else(PoisonError::into_inner) = script;
    }

    /// From now on this rule goes before all others.
    pub fn first(&self, rule: crate::Rule) {
        self.shared.script.lock().unwrap_or_else(PoisonError::into_inner).first(rule);
    }

    /// Every request so far, in order of arrival.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.recorder.all()
    }

    /// Waits until `n` requests have come in all, then returns those kept.
    pub async fn wait_for(&self, n: u64) -> Vec<Recorded> {
        self.shared.recorder.wait_for(n).await;
        self.requests()
    }

    /// Waits until `n` requests that `wanted` accepts have come, then returns those.
    pub async fn wait_for_those(&self, n: usize, wanted: impl Fn(&Recorded) -> bool) -> Vec<Recorded> {
        loop {
            let seen = self.count();
            let those: Vec<Recorded> = self.requests().into_iter().filter(|r| wanted(r)).collect();
            if those.len() >= n {
                return those;
            }
            self.shared.recorder.wait_for(seen + 1).await;
        }
    }

    pub fn count(&self) -> u64 {
        self.shared.recorder.count()
    }

    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    pub fn forget_requests(&self) {
        self.shared.recorder.clear();
    }

    /// Serves until the process ends.
    pub async fn forever(mut self) {
        // The accept loop ends only with its task.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    // Connections end with the loop.
    let mut connections = JoinSet::new();
    loop {
        let Ok((tcp, _)) = listener.accept().await else {
            // Out of file descriptors: the next round may do better.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(connection(tcp, tls.clone(), shared.clone()));
    }
}

async fn connection(tcp: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let number = shared.connections.fetch_add(1, Ordering::Relaxed);
    // Each event in a packet of its own.
    let _ = tcp.set_nodelay(true);
    let (socket, reset) = Socket::new(tcp);
    match tls {
        None => serve(socket, number, reset, shared).await,
        Some(tls) => {
            if let Ok(stream) = tls.accept(socket).await {
                serve(stream, number, reset, shared).await;
            }
        }
    }
}

async fn serve<S>(stream: S, number: u64, reset: ResetOnDrop, shared: Arc<Shared>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request| {
        let (shared, reset) = (shared.clone(), reset.clone());
        async move { Ok::<_, Infallible>(answer(request, number, reset, &shared).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http2().max_concurrent_streams(10_000).initial_stream_window_size(1 << 20);
    // How a connection ended is seen in the fate of its answers.
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(request: Request<Incoming>, number: u64, reset: ResetOnDrop, shared: &Shared) -> Response<Body> {
    let (parts, incoming) = request.into_parts();
    let (body, complete) = read(incoming).await;
    if let Some(canned) = &shared.canned {
        shared.recorder.count_only();
        return respond(canned.clone(), parts.uri.path(), &body, &Asked::default(), Watching::none(reset)).await;
    }
    let asked = script::asked(&body);
    let watcher = match shared.recorder.is_on() {
        true => shared.recorder.keep(&parts, body.clone(), complete, number),
        false => shared.recorder.count_only(),
    };
    let chosen = shared.script.lock().unwrap_or_else(PoisonError::into_inner).choose(&parts, &asked);
    respond(chosen, parts.uri.path(), &body, &asked, Watching { watcher: Some(watcher), reset }).await
}

struct Watching {
    watcher: Option<Watcher>,
    reset: ResetOnDrop,
}

impl Watching {
    fn none(reset: ResetOnDrop) -> Self {
        Self { watcher: None, reset }
    }
}

/// The body so far, and whether that is all of it.
async fn read(mut incoming: Incoming) -> (Bytes, bool) {
    let mut all: Option<bytes::BytesMut> = None;
    let mut first: Option<Bytes> = None;
    while let Some(frame) = incoming.frame().await {
        let Ok(frame) = frame else {
            return (all.map(bytes::BytesMut::freeze).or(first).unwrap_or_default(), false);
        };
        let Ok(data) = frame.into_data() else { continue };
        match (&mut all, &first) {
            (None, None) => first = Some(data),
            (None, Some(one)) => {
                let mut buffer = bytes::BytesMut::from(&one[..]);
                buffer.extend_from_slice(&data);
                all = Some(buffer);
            }
            (Some(buffer), _) => buffer.extend_from_slice(&data),
        }
    }
    (all.map(bytes::BytesMut::freeze).or(first).unwrap_or_default(), true)
}

async fn respond(answer: Answer, path: &str, request: &Bytes, asked: &Asked, watching: Watching) -> Response<Body> {
    answer.delivery.headers.wait().await;
    let made = make(answer.content, path, request, asked);
    let status = if answer.status == 200 { made.status } else { answer.status };
    let mut response = Response::builder().status(status).header("content-type", made.content_type);
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    if answer.delivery.gzip {
        response = response.header("content-encoding", "gzip");
    }
    finish(response, made.payload, answer.delivery, watching)
}

struct Made {
    status: u16,
    content_type: String,
    payload: Payload,
}

enum Payload {
    Whole(Bytes),
    Events(Events),
}

impl Made {
    fn json(status: u16, body: Bytes) -> Self {
        Self { status, content_type: "application/json".to_owned(), payload: Payload::Whole(body) }
    }
}

fn make(content: Content, path: &str, request: &Bytes, asked: &Asked) -> Made {
    match content {
        Content::ByPath => match script::by_path(path) {
            Some(content) => make(content, path, request, asked),
            None => Made::json(404, Bytes::from_static(b"{\"error\":{\"message\":\"no such path\"}}")),
        },
        Content::Raw { content_type, body } => Made { status: 200, content_type, payload: Payload::Whole(body) },
        Content::Models(ids) => {
            let (status, body) = script::models(&ids, path);
            Made::json(status, body)
        }
        Content::Embeddings { prompt_tokens } => Made::json(200, script::embeddings(request, prompt_tokens)),
        Content::Chat(chat) if asked.stream => Made {
            status: 200,
            content_type: "text/event-stream; charset=utf-8".to_owned(),
            payload: Payload::Events(Box::new(chat.events(asked).map(Bytes::from))),
        },
        Content::Chat(chat) => Made::json(200, chat.whole(asked)),
    }
}

fn finish(
    mut response: hyper::http::response::Builder,
    payload: Payload,
    delivery: crate::Delivery,
    watching: Watching,
) -> Response<Body> {
    let plain = matches!(
        delivery,
        crate::Delivery { body: Wait::No, cut: None, gzip: false, chunked: false, pieces: crate::Pieces::Events, .. }
    );
    let body = match payload {
        Payload::Whole(bytes) if plain => {
            if let Some(mut watcher) = watching.watcher {
                watcher.delivered(bytes.len());
                watcher.ended(Fate::Delivered);
            }
            Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
        }
        payload => {
            let mut events: Events = match payload {
                Payload::Whole(bytes) => {
                    if !delivery.chunked && !delivery.gzip {
                        response = response.header("content-length", bytes.len());
                    }
                    Box::new(std::iter::once(bytes))
                }
                Payload::Events(events) => events,
            };
            events = deliver::dressed(events, &delivery);
            let watcher = watching.watcher.unwrap_or_else(Watcher::nobody);
            StreamBody::new(deliver::body(events, delivery, watcher, watching.reset)).boxed_unsync()
        }
    };
    response.body(body).unwrap_or_else(|_| {
        // A script with a header that is none.
        let mut response = Response::new(Full::default().map_err(|never| match never {}).boxed_unsync());
        *response.status_mut() = hyper::StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}
