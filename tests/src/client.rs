//! An HTTP client for requests of any shape: pieces, trailers, half a body, a client that leaves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::sse::Events;

/// The protocol a request goes over, each in a connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    H1,
    /// With prior knowledge, in plain text.
    H2,
}

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: &'static str,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Outgoing,
}

#[derive(Clone, Debug)]
pub enum Outgoing {
    Nothing,
    /// With its length.
    Whole(Bytes),
    /// Without a length, each piece in a write of its own, trailers after them if there are any.
    Pieces {
        pieces: Vec<Bytes>,
        trailers: Vec<(String, String)>,
    },
    /// Announces the whole, sends this part and then nothing more.
    Half {
        part: Bytes,
        announced: u64,
    },
}

/// The head of a reply; the body comes as it arrives.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    body: Incoming,
    connection: tokio::task::JoinHandle<()>,
}

type Body = UnsyncBoxBody<Bytes, std::convert::Infallible>;

impl Call {
    pub fn post(path: &str, body: impl Into<Bytes>) -> Self {
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        Self { method: "POST", path: path.to_owned(), headers, body: Outgoing::Whole(body.into()) }
    }

    pub fn get(path: &str) -> Self {
        Self { method: "GET", path: path.to_owned(), headers: Vec::new(), body: Outgoing::Nothing }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn bearer(self, key: &str) -> Self {
        self.header("authorization", &format!("Bearer {key}"))
    }

    pub fn body(mut self, body: Outgoing) -> Self {
        self.body = body;
        self
    }

    /// The same body in pieces of `size` bytes, without its length.
    pub fn in_pieces(mut self, size: usize) -> Self {
        if let Outgoing::Whole(body) = &self.body {
            let pieces = body.chunks(size).map(|c| body.slice_ref(c)).collect();
            self.body = Outgoing::Pieces { pieces, trailers: Vec::new() };
        }
        self
    }

    fn request(self, addr: SocketAddr) -> Result<Request<Body>> {
        let mut request = Request::builder().method(self.method);
        let announced = match &self.body {
            Outgoing::Half { announced, .. } => Some(*announced),
            _ => None,
        };
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        if let Some(length) = announced {
            request = request.header("content-length", length);
        }
        let uri = format!("http://{addr}{}", self.path);
        request.uri(uri).body(outgoing(self.body)).context("a request that can be sent")
    }
}

fn outgoing(body: Outgoing) -> Body {
    match body {
        Outgoing::Nothing => Empty::new().boxed_unsync(),
        Outgoing::Whole(bytes) => Full::new(bytes).boxed_unsync(),
        Outgoing::Pieces { pieces, trailers } => {
            let trailers: HeaderMap = trailers
                .iter()
                .filter_map(|(n, v)| Some((n.parse::<hyper::header::HeaderName>().ok()?, v.parse().ok()?)))
                .collect();
            let end = (!trailers.is_empty()).then(|| Frame::trailers(trailers));
            let frames = pieces.into_iter().map(Frame::data).chain(end);
            // Giving way before each piece lets the one before be written.
            let frames = stream::iter(frames).then(|f| async {
                tokio::task::yield_now().await;
                Ok(f)
            });
            StreamBody::new(frames).boxed_unsync()
        }
        Outgoing::Half { part, .. } => {
            let frames = stream::once(async { Ok(Frame::data(part)) }).chain(stream::pending());
            StreamBody::new(frames).boxed_unsync()
        }
    }
}

/// Sends one request on a new connection and returns its reply's head. At most 60 s.
pub async fn send(http: Http, addr: SocketAddr, call: Call) -> Result<Reply> {
    tokio::time::timeout(Duration::from_secs(60), exchange(http, addr, call)).await.context("no reply within 60 s")?
}

/// The same over TLS, whose server must have a certificate of this authority (PEM) for `localhost`. Which protocol it is, the
/// two agree on in the handshake (ALPN).
pub async fn send_tls(http: Http, addr: SocketAddr, ca: &str, call: Call) -> Result<Reply> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate?)?;
    }
    let mut config = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![match http {
        Http::H1 => b"http/1.1".to_vec(),
        Http::H2 => b"h2".to_vec(),
    }];
    let socket = TcpStream::connect(addr).await.context("connect")?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let socket = connector.connect("localhost".try_into()?, socket).await.context("TLS")?;
    let exchange = exchange_on(http, socket, call.request(addr)?);
    tokio::time::timeout(Duration::from_secs(60), exchange).await.context("no reply within 60 s")?
}

async fn exchange(http: Http, addr: SocketAddr, call: Call) -> Result<Reply> {
    let request = call.request(addr)?;
    let socket = TcpStream::connect(addr).await.context("connect")?;
    socket.set_nodelay(true)?;
    exchange_on(http, socket, request).await
}

async fn exchange_on<S>(http: Http, socket: S, request: Request<Body>) -> Result<Reply>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let io = TokioIo::new(socket);
    let (response, connection) = match http {
        Http::H1 => {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
            // Its errors show in the exchange itself.
            let connection = tokio::spawn(async move { drop(connection.await) });
            (sender.send_request(origin_form(request)).await, connection)
        }
        Http::H2 => {
            let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(1 << 20).initial_connection_window_size(4 << 20);
            let (mut sender, connection) = builder.handshake(io).await?;
            let connection = tokio::spawn(async move { drop(connection.await) });
            (sender.send_request(request).await, connection)
        }
    };
    let response: Response<Incoming> = response.inspect_err(|_| connection.abort())?;
    let (parts, body) = response.into_parts();
    Ok(Reply { status: parts.status.as_u16(), headers: parts.headers, body, connection })
}

/// HTTP/1 wants the path in the request line and the authority in `host`.
fn origin_form(mut request: Request<Body>) -> Request<Body> {
    let uri = request.uri().clone();
    if let Some(authority) = uri.authority().and_then(|a| a.as_str().parse().ok()) {
        request.headers_mut().insert("host", authority);
    }
    if let Some(path) = uri.path_and_query().and_then(|p| p.as_str().parse().ok()) {
        *request.uri_mut() = path;
    }
    request
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The next bytes, `None` at the end in order. At most 60 s.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        loop {
            let frame = tokio::time::timeout(Duration::from_secs(60), self.body.frame()).await;
            match frame.context("no byte within 60 s")? {
                None => return Ok(None),
                Some(Err(e)) => bail!("the body broke off: {e}"),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The whole body; an error where it broke off.
    pub async fn bytes(mut self) -> Result<Bytes> {
        let mut all = BytesMut::new();
        while let Some(chunk) = self.chunk().await? {
            all.extend_from_slice(&chunk);
        }
        Ok(all.freeze())
    }

    /// The whole body, and the trailers after it.
    pub async fn to_the_end(mut self) -> Result<(Bytes, HeaderMap)> {
        let (mut all, mut trailers) = (BytesMut::new(), HeaderMap::new());
        while let Some(frame) = self.body.frame().await {
            match frame.context("the body broke off")?.into_data() {
                Ok(data) => all.extend_from_slice(&data),
                Err(frame) => trailers.extend(frame.into_trailers().unwrap_or_default()),
            }
        }
        Ok((all.freeze(), trailers))
    }

    pub async fn json(self) -> Result<serde_json::Value> {
        let (status, body) = (self.status, self.bytes().await?);
        serde_json::from_slice(&body).with_context(|| format!("{status}: {}", String::from_utf8_lossy(&body)))
    }

    pub async fn text(self) -> Result<String> {
        Ok(String::from_utf8(self.bytes().await?.to_vec())?)
    }

    /// The body as events.
    pub fn events(self) -> Events {
        Events::new(self)
    }

    /// Closes the connection now, whatever is still to come.
    pub fn leave(self) {
        self.connection.abort();
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Sends a request and leaves `after` its bytes were handed over, without waiting for a reply.
pub async fn send_and_leave(http: Http, addr: SocketAddr, call: Call, after: impl Future<Output = ()>) -> Result<()> {
    tokio::select! {
        reply = exchange(http, addr, call) => bail!("a reply came: {}", reply?.status),
        () = after => Ok(()),
    }
}
