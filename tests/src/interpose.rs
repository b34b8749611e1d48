//! Between an Envoy and its control plane: reads what is said on `Sync`, and says things the control plane did not.
//!
//! So a test drives a real Envoy that has all it needs from the real control plane, and plays a bad one.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use sluicegate_core::proto::dataplane::{PolicyPart, PolicyVerdict, SyncDown, SyncUp, sync_down, sync_up};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;

use crate::run::eventually;

const SYNC: &str = "/sluicegate.dataplane.v1.DataPlane/Sync";

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// A running proxy for HTTP/2 in plain text; dropped, its connections end.
#[derive(Debug)]
pub struct Interposer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    up: watch::Sender<Vec<SyncUp>>,
    down: watch::Sender<Vec<SyncDown>>,
    inject: broadcast::Sender<Bytes>,
}

impl Interposer {
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            up: watch::Sender::new(Vec::new()),
            down: watch::Sender::new(Vec::new()),
            inject: broadcast::channel(1024).0,
        });
        let task = tokio::spawn(accept(listener, target, shared.clone()));
        Self { addr, shared, task }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Says this on every open `Sync`.
    pub fn say(&self, message: sync_down::M) {
        let message = SyncDown { m: Some(message) };
        // Without an open stream nobody hears it.
        let _ = self.shared.inject.send(framed(&message));
    }

    /// All that Envoys said on `Sync`.
    pub fn heard(&self) -> Vec<SyncUp> {
        self.shared.up.borrow().clone()
    }

    /// All that the real control plane said on `Sync`.
    pub fn relayed(&self) -> Vec<SyncDown> {
        self.shared.down.borrow().clone()
    }

    /// The newest policy of the real control plane: era, revision and its encoded Snapshot.
    pub fn policy(&self) -> anyhow::Result<(u64, u64, Vec<u8>)> {
        let parts: Vec<PolicyPart> = self
            .relayed()
            .into_iter()
            .filter_map(|m| match m.m {
                Some(sync_down::M::Policy(part)) => Some(part),
                _ => None,
            })
            .collect();
        let newest = parts.iter().map(|p| (p.era, p.revision)).max().context("no policy yet")?;
        let mut whole: Vec<&PolicyPart> = parts.iter().filter(|p| (p.era, p.revision) == newest).collect();
        whole.sort_by_key(|p| p.index);
        whole.dedup_by_key(|p| p.index);
        let bytes = whole.iter().flat_map(|p| p.part.iter().copied()).collect();
        Ok((newest.0, newest.1, bytes))
    }

    /// Waits for the verdict on a policy revision.
    pub async fn verdict(&self, revision: u64) -> PolicyVerdict {
        eventually("a verdict", Duration::from_secs(10), || async {
            let verdict = self.heard().into_iter().find_map(|m| match m.m {
                Some(sync_up::M::Verdict(v)) if v.revision == revision => Some(v),
                _ => None,
            });
            ensure!(verdict.is_some(), "none on {revision} yet");
            verdict.context("just looked")
        })
        .await
    }
}

impl Drop for Interposer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((near, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        // A connection that cannot be carried on is closed; Envoy makes another.
        connections.spawn(carry(near, target, shared.clone()));
    }
}

async fn carry(near: TcpStream, target: SocketAddr, shared: Arc<Shared>) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(far)).await;
    let Ok((sender, far)) = handshake else { return };
    let service = service_fn(move |request| {
        let (sender, shared) = (sender.clone(), shared.clone());
        async move { Ok::<_, Infallible>(relay(request, sender, shared).await) }
    });
    let near =
        hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(near), service);
    // Either end's end is the connection's.
    tokio::select! { _ = near => {}, _ = far => {} }
}

async fn relay(request: Request<Incoming>, mut sender: SendRequest<Body>, shared: Arc<Shared>) -> Response<Body> {
    let sync = request.uri().path() == SYNC;
    let (parts, body) = request.into_parts();
    let up = match sync {
        true => StreamBody::new(listening(body, shared.clone(), note_up)).boxed_unsync(),
        false => body.boxed_unsync(),
    };
    match sender.send_request(Request::from_parts(parts, up)).await {
        Ok(reply) => {
            let (parts, body) = reply.into_parts();
            let body = match sync {
                true => StreamBody::new(speaking(body, shared)).boxed_unsync(),
                false => body.boxed_unsync(),
            };
            Response::from_parts(parts, body)
        }
        Err(_) => {
            let mut reply = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
            *reply.status_mut() = hyper::StatusCode::BAD_GATEWAY;
            reply
        }
    }
}

fn note_up(shared: &Shared, message: &[u8]) {
    if let Ok(message) = SyncUp::decode(message) {
        shared.up.send_modify(|all| all.push(message));
    }
}

fn note_down(shared: &Shared, message: &[u8]) {
    if let Ok(message) = SyncDown::decode(message) {
        shared.down.send_modify(|all| all.push(message));
    }
}

/// The frames of `body`, cut at the ends of messages, each noted.
fn listening(
    body: Incoming,
    shared: Arc<Shared>,
    note: fn(&Shared, &[u8]),
) -> impl Stream<Item = Result<Frame<Bytes>, hyper::Error>> + Send {
    let buffer = BytesMut::new();
    stream::unfold((body, buffer, shared), move |(mut body, mut buffer, shared)| async move {
        let frame = loop {
            match body.frame().await? {
                Err(e) => break Err(e),
                Ok(frame) => match frame.into_data() {
                    Err(trailers) => break Ok(trailers),
                    Ok(data) => {
                        buffer.extend_from_slice(&data);
                        let whole = whole_messages(&mut buffer, |m| note(&shared, m));
                        if !whole.is_empty() {
                            break Ok(Frame::data(whole));
                        }
                    }
                },
            }
        };
        Some((frame, (body, buffer, shared)))
    })
}

/// The control plane's frames, with what the test says between them.
fn speaking(body: Incoming, shared: Arc<Shared>) -> impl Stream<Item = Result<Frame<Bytes>, hyper::Error>> + Send {
    let said = shared.inject.subscribe();
    let real = Box::pin(listening(body, shared, note_down));
    stream::unfold((real, said), |(mut real, mut said)| async move {
        let frame = tokio::select! {
            frame = real.next() => frame?,
            Ok(message) = said.recv() => Ok(Frame::data(message)),
        };
        Some((frame, (real, said)))
    })
}

/// Takes the complete messages off the front of `buffer`. A message is a flag, four bytes of length, and that many bytes.
fn whole_messages(buffer: &mut BytesMut, mut each: impl FnMut(&[u8])) -> Bytes {
    let mut end = 0;
    while let Some(mut head) = buffer.get(end..).filter(|rest| rest.len() >= 5) {
        head.advance(1);
        let length = head.get_u32() as usize;
        let Some(message) = head.get(..length) else { break };
        each(message);
        end += 5 + length;
    }
    buffer.split_to(end).freeze()
}

fn framed(message: &impl Message) -> Bytes {
    let encoded = message.encode_to_vec();
    let mut frame = BytesMut::with_capacity(5 + encoded.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(encoded.len()).unwrap_or(u32::MAX));
    frame.put_slice(&encoded);
    frame.freeze()
}
