//! A TCP stream that can end in a reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Set: the socket is dropped with a reset instead of an orderly close.
pub(crate) type ResetOnDrop = Arc<AtomicBool>;

#[derive(Debug)]
pub(crate) struct Socket {
    tcp: TcpStream,
    reset: ResetOnDrop,
}

impl Socket {
    pub fn new(tcp: TcpStream) -> (Self, ResetOnDrop) {
        let reset = ResetOnDrop::default();
        (Self { tcp, reset: reset.clone() }, reset)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.reset.load(Ordering::Acquire) {
            // A socket that lingers for no time sends a reset; where this fails it is closed in order.
            let _ = self.tcp.set_zero_linger();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.reset.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
