//! A TCP proxy that fails as told: put between Envoy and control plane, or control plane and Postgres.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How the wire behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    #[default]
    Good,
    /// Each piece is late by this much.
    Late(Duration),
    /// Connections stay, nothing passes (a partition).
    Stalled,
    /// Connections are closed in order, new ones too.
    Closed,
    /// Connections are reset, new ones too.
    Reset,
}

/// The wire now, and how many times all connections were reset.
type State = (Wire, u64);

/// A running proxy; dropped, its connections end.
#[derive(Debug)]
pub struct FaultProxy {
    addr: SocketAddr,
    wire: Arc<watch::Sender<State>>,
    task: tokio::task::JoinHandle<()>,
}

impl FaultProxy {
    pub async fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let addr = listener.local_addr().expect("a bound socket has an address");
        let wire = Arc::new(watch::Sender::new((Wire::Good, 0)));
        let task = tokio::spawn(accept(listener, target, wire.clone()));
        Self { addr, wire, task }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// From now on.
    pub fn set(&self, wire: Wire) {
        self.wire.send_modify(|(now, _)| *now = wire);
    }

    /// Resets every connection; new ones are good.
    pub fn reset_once(&self) {
        self.wire.send_modify(|(_, resets)| *resets += 1);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, wire: Arc<watch::Sender<State>>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((near, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        connections.spawn(carry(near, target, wire.clone()));
    }
}

async fn carry(near: TcpStream, target: SocketAddr, wire: Arc<watch::Sender<State>>) {
    let mut state = wire.subscribe();
    let (now, resets) = *state.borrow_and_update();
    if matches!(now, Wire::Closed | Wire::Reset) {
        return end(&near, now);
    }
    let Ok(far) = TcpStream::connect(target).await else { return };
    // Small messages must not wait for more.
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let (mut near_read, mut near_write) = near.into_split();
    let (mut far_read, mut far_write) = far.into_split();
    let how = tokio::select! {
        () = pump(&mut near_read, &mut far_write, wire.subscribe()) => Wire::Closed,
        () = pump(&mut far_read, &mut near_write, wire.subscribe()) => Wire::Closed,
        how = fault(&mut state, resets) => how,
    };
    if let (Ok(near), Ok(far)) = (near_read.reunite(near_write), far_read.reunite(far_write)) {
        end(&near, how);
        end(&far, how);
    }
}

/// Waits for the order to end.
async fn fault(state: &mut watch::Receiver<State>, resets: u64) -> Wire {
    let fatal = |(wire, now): &State| *now != resets || matches!(wire, Wire::Closed | Wire::Reset);
    match state.wait_for(fatal).await.map(|s| *s) {
        Ok((Wire::Closed, _)) | Err(_) => Wire::Closed,
        Ok(_) => Wire::Reset,
    }
}

async fn pump(
    from: &mut tokio::net::tcp::OwnedReadHalf,
    to: &mut tokio::net::tcp::OwnedWriteHalf,
    mut wire: watch::Receiver<State>,
) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        let Ok(n) = from.read(&mut buffer).await else { return };
        let Some(data) = buffer.get(..n).filter(|d| !d.is_empty()) else { return };
        let (now, _) = *wire.borrow_and_update();
        if let Wire::Late(by) = now {
            tokio::time::sleep(by).await;
        }
        // While stalled nothing is passed on; what was read waits.
        if wire.wait_for(|(now, _)| *now != Wire::Stalled).await.is_err() || to.write_all(data).await.is_err() {
            return;
        }
    }
}

fn end(socket: &TcpStream, how: Wire) {
    if how == Wire::Reset {
        // Without lingering, a drop is a reset.
        let _ = socket.set_zero_linger();
    }
}
