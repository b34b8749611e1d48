//! Says that somebody speaks plaintext to a TLS port: an Envoy that does so says nothing itself.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// The first byte of a TLS connection: a handshake record (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
/// A peer is warned of once in this time.
const QUIET: Duration = Duration::from_secs(60);
/// Of more peers than these nothing is said until some are forgotten.
const MOST_PEERS: usize = 1024;

/// Whom was warned of, and when.
#[derive(Clone, Debug, Default)]
pub struct Warned(Arc<Mutex<HashMap<IpAddr, Instant>>>);

impl Warned {
    /// A connection to a TLS port; `self` hears of it when it does not begin like one.
    pub fn watch(&self, stream: TcpStream) -> Watched {
        Watched { stream, unseen: Some(self.clone()) }
    }

    /// Whether `peer` is to be warned of now.
    fn is_due(&self, peer: IpAddr, now: Instant) -> bool {
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|_, warned| now.saturating_duration_since(*warned) < QUIET);
        peers.len() < MOST_PEERS && !peers.contains_key(&peer) && peers.insert(peer, now).is_none()
    }

    fn look(&self, first: u8, stream: &TcpStream) {
        let Ok(peer) = stream.peer_addr() else { return };
        if first != HANDSHAKE && self.is_due(peer.ip(), Instant::now()) {
            tracing::warn!(
                %peer,
                "plaintext on the gRPC port, which speaks TLS: an Envoy needs the `transport_socket` of envoy/managed.yaml"
            );
        }
    }
}

/// A connection whose first byte is looked at.
#[derive(Debug)]
pub struct Watched {
    stream: TcpStream,
    /// Until the first byte has come.
    unseen: Option<Warned>,
}

impl Connected for Watched {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if let Some(first) = buf.filled().get(before)
            && let Some(warned) = self.unseen.take()
        {
            warned.look(*first, &self.stream);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_warned_of_once_a_minute() {
        let (warned, now) = (Warned::default(), Instant::now());
        let peer = |last| IpAddr::from([127, 0, 0, last]);
        assert!(warned.is_due(peer(1), now));
        assert!(!warned.is_due(peer(1), now + QUIET / 2));
        assert!(warned.is_due(peer(2), now + QUIET / 2));
        assert!(warned.is_due(peer(1), now + QUIET));
    }
}
