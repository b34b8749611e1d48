//! Load that costs little: fixed bytes over connections that stay open, each sending when it has been answered.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// An HTTP/1.1 request as it goes over the wire.
pub fn request(method: &str, path: &str, key: &str, body: &str) -> Bytes {
    let length = if body.is_empty() {
        String::new()
    } else {
        format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len())
    };
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {key}\r\naccept: application/json\r\n\
         user-agent: bench\r\n{length}\r\n"
    );
    (head + body).into()
}

/// One connection; one request at a time.
#[derive(Debug)]
pub struct Connection {
    tcp: TcpStream,
    buffer: Vec<u8>,
    filled: usize,
}

impl Connection {
    pub async fn open(to: SocketAddr) -> Result<Self> {
        let tcp = TcpStream::connect(to).await?;
        tcp.set_nodelay(true)?;
        Ok(Self { tcp, buffer: vec![0; 64 << 10], filled: 0 })
    }

    /// Sends `request`, reads the whole reply, and returns its status.
    pub async fn ask(&mut self, request: &[u8]) -> Result<u16> {
        self.tcp.write_all(request).await?;
        self.filled = 0;
        let head = loop {
            self.fill().await?;
            if let Some(at) = find(self.read(), b"\r\n\r\n") {
                break at + 4;
            }
        };
        let text = std::str::from_utf8(self.read().get(..head).unwrap_or_default())?;
        let status = text.get(9..12).and_then(|s| s.parse().ok()).context("a status")?;
        match length(text) {
            Some(length) => {
                while self.filled < head + length {
                    self.fill().await?;
                }
            }
            // Only chunks are left. None of the replies here has the last chunk's bytes within it.
            None => {
                while !self.read().ends_with(b"0\r\n\r\n") {
                    self.fill().await?;
                }
            }
        }
        Ok(status)
    }

    fn read(&self) -> &[u8] {
        self.buffer.get(..self.filled).unwrap_or_default()
    }

    async fn fill(&mut self) -> Result<()> {
        if self.filled == self.buffer.len() {
            self.buffer.resize(self.filled * 2, 0);
        }
        let free = self.buffer.get_mut(self.filled..).unwrap_or_default();
        match self.tcp.read(free).await? {
            0 => bail!("the connection ended within a reply"),
            n => self.filled += n,
        }
        Ok(())
    }
}

fn length(head: &str) -> Option<usize> {
    let mut lines = head.lines().filter_map(|l| l.split_once(": "));
    lines.find(|(name, _)| name.eq_ignore_ascii_case("content-length")).and_then(|(_, n)| n.parse().ok())
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|w| w == what)
}

/// Asks over and over for `time` on `connections` of its own, and returns how long each reply took.
///
/// # Errors
/// When anything but a 200 comes: then it is not what was to be measured.
pub async fn run(to: SocketAddr, request: &Bytes, connections: usize, time: Duration) -> Result<Vec<Duration>> {
    let mut asking = JoinSet::new();
    for _ in 0..connections {
        let (mut connection, request) = (Connection::open(to).await?, request.clone());
        asking.spawn(async move {
            let (mut took, start) = (Vec::new(), Instant::now());
            while start.elapsed() < time {
                let sent = Instant::now();
                let status = connection.ask(&request).await?;
                ensure!(status == 200, "answered with {status}");
                took.push(sent.elapsed());
            }
            Ok(took)
        });
    }
    let mut all = Vec::new();
    while let Some(took) = asking.join_next().await {
        all.extend(took??);
    }
    Ok(all)
}
