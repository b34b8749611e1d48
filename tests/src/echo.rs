//! Somebody's own service: keeps what it gets as it came, and says it back.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// One request as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub method: String,
    pub target: String,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub trailers: HeaderMap,
}

/// Answers with the request's own body and trailers, over HTTP/1.1 and HTTP/2; an upgraded connection is said back byte
/// for byte.
#[derive(Debug)]
pub struct Echo {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    task: JoinHandle<()>,
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

impl Echo {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let task = tokio::spawn(accept(listener, Arc::clone(&seen)));
        Self { addr, seen, task }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// How many came since they were last taken.
    pub fn seen(&self) -> usize {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// What came since this was last asked.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, seen: Arc<Mutex<Vec<Seen>>>) {
    while let Ok((socket, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(request, Arc::clone(&seen)));
            let mut builder = auto::Builder::new(TokioExecutor::new());
            // The one thing in an answer that changes by itself.
            builder.http1().auto_date_header(false);
            builder.http2().auto_date_header(false);
            // How a connection ended is seen in what came.
            let _ = builder.serve_connection_with_upgrades(TokioIo::new(socket), service).await;
        });
    }
}

async fn answer(mut request: Request<Incoming>, seen: Arc<Mutex<Vec<Seen>>>) -> Result<Response<Body>, Infallible> {
    let upgrade = request.headers().contains_key("upgrade").then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let (body, trailers) = match body.collect().await {
        Ok(whole) => {
            let trailers = whole.trailers().cloned().unwrap_or_default();
            (whole.to_bytes(), trailers)
        }
        Err(_) => Default::default(),
    };
    let target = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
    let one = Seen {
        method: parts.method.to_string(),
        target,
        headers: parts.headers,
        body: body.clone(),
        trailers: trailers.clone(),
    };
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(one);
    let mut response = Response::new(Empty::new().boxed_unsync());
    for (name, value) in
        [("x-app", "1"), ("content-type", "text/plain"), ("set-cookie", "a=b"), ("x-envoy-theirs", "2")]
    {
        response.headers_mut().append(name, value.parse().expect("a header's value"));
    }
    match upgrade {
        Some(upgrade) => {
            *response.status_mut() = hyper::StatusCode::SWITCHING_PROTOCOLS;
            for (name, value) in [("connection", "upgrade"), ("upgrade", "websocket")] {
                response.headers_mut().insert(name, value.parse().expect("a header's value"));
            }
            tokio::spawn(async move {
                let Ok(connection) = upgrade.await else { return };
                let (mut from, mut to) = tokio::io::split(TokioIo::new(connection));
                // Ends when the other side leaves.
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
        None => {
            let end = (!trailers.is_empty()).then(|| Frame::trailers(trailers));
            let frames = std::iter::once(Frame::data(body)).chain(end).map(Ok);
            *response.body_mut() = StreamBody::new(futures::stream::iter(frames)).boxed_unsync();
        }
    }
    Ok(response)
}
