//! An answer's body on its way out: waits, pieces, cuts.

use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::Stream;
use futures::stream;
use hyper::body::Frame;

use crate::answer::{Cut, CutHow, Delivery, Newline, Pieces};
use crate::record::{Fate, Watcher};
use crate::socket::ResetOnDrop;

/// The script ended the body before its end.
#[derive(Debug)]
pub(crate) struct CutShort;

impl std::fmt::Display for CutShort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the script cuts the answer here")
    }
}

impl std::error::Error for CutShort {}

pub(crate) type Events = Box<dyn Iterator<Item = Bytes> + Send>;

/// The events as delivered: line ends, a missing final newline, gzip.
pub(crate) fn dressed(events: Events, delivery: &Delivery) -> Events {
    let newline = delivery.newline;
    let mut events = if newline == Newline::Lf {
        events
    } else {
        Box::new(events.map(move |e| replace_newlines(&e, newline))) as Events
    };
    if delivery.no_final_newline {
        events = Box::new(trim_last(events));
    }
    if delivery.gzip {
        let whole: Vec<u8> = events.flatten().collect();
        events = Box::new(std::iter::once(gzip(&whole)));
    }
    events
}

struct Outgoing {
    events: std::iter::Peekable<Events>,
    delivery: Delivery,
    pieces: Splitter,
    started: bool,
    sent: u64,
    watcher: Watcher,
    reset: ResetOnDrop,
    over: bool,
}

/// The frames of the body. Before each one the connection is given the time to flush the one before.
pub(crate) fn body(
    events: Events,
    delivery: Delivery,
    watcher: Watcher,
    reset: ResetOnDrop,
) -> impl Stream<Item = Result<Frame<Bytes>, CutShort>> + Send {
    let pieces = Splitter::new(&delivery.pieces);
    let state =
        Outgoing { events: events.peekable(), delivery, pieces, started: false, sent: 0, watcher, reset, over: false };
    stream::unfold(state, |mut out| async move {
        let frame = out.next().await?;
        Some((frame.map(Frame::data), out))
    })
}

impl Outgoing {
    async fn next(&mut self) -> Option<Result<Bytes, CutShort>> {
        if self.over {
            return None;
        }
        tokio::task::yield_now().await;
        let Some(piece) = self.piece().await else {
            self.over = true;
            self.watcher.ended(Fate::Delivered);
            return None;
        };
        match self.delivery.cut {
            Some(Cut { after_bytes, how }) if self.sent + piece.len() as u64 > after_bytes => {
                self.cut(piece, after_bytes, how).await
            }
            _ => Some(Ok(self.send(piece))),
        }
    }

    /// The bytes before the cut first; called again, the cut itself.
    async fn cut(&mut self, piece: Bytes, after: u64, how: CutHow) -> Option<Result<Bytes, CutShort>> {
        let keep = usize::try_from(after - self.sent).unwrap_or(0);
        if keep > 0 {
            self.pieces.give_back(piece.slice(keep..));
            return Some(Ok(self.send(piece.slice(..keep))));
        }
        self.over = true;
        // What was sent must have left before the socket goes.
        tokio::time::sleep(Duration::from_millis(5)).await;
        self.watcher.ended(Fate::Cut);
        if how == CutHow::End {
            return None;
        }
        self.reset.store(how == CutHow::Reset, Ordering::Release);
        Some(Err(CutShort))
    }

    fn send(&mut self, piece: Bytes) -> Bytes {
        self.sent += piece.len() as u64;
        self.watcher.delivered(piece.len());
        piece
    }

    async fn piece(&mut self) -> Option<Bytes> {
        if !self.started {
            self.started = true;
            self.delivery.body.wait().await;
            let first = self.events.next()?;
            self.pieces.add(first);
        } else if self.pieces.has_rest() {
            self.delivery.pace.wait().await;
        }
        loop {
            let at_end = self.events.peek().is_none();
            if let Some(piece) = self.pieces.take(at_end) {
                return Some(piece);
            }
            let event = self.events.next()?;
            self.delivery.between.wait().await;
            self.pieces.add(event);
        }
    }
}

/// Cuts the events into pieces.
struct Splitter {
    sizes: Vec<usize>,
    turn: usize,
    buffer: BytesMut,
    returned: Option<Bytes>,
}

impl Splitter {
    fn new(pieces: &Pieces) -> Self {
        let sizes = match pieces {
            Pieces::Events => Vec::new(),
            Pieces::Bytes(n) => vec![(*n).max(1)],
            Pieces::Sizes(sizes) => sizes.iter().map(|n| (*n).max(1)).collect(),
        };
        Self { sizes, turn: 0, buffer: BytesMut::new(), returned: None }
    }

    fn add(&mut self, event: Bytes) {
        self.buffer.extend_from_slice(&event);
    }

    fn give_back(&mut self, rest: Bytes) {
        self.returned = Some(rest);
    }

    fn has_rest(&self) -> bool {
        self.returned.is_some() || !self.buffer.is_empty()
    }

    /// The next piece; one that is not full only where nothing more comes.
    fn take(&mut self, at_end: bool) -> Option<Bytes> {
        if let Some(rest) = self.returned.take() {
            return Some(rest);
        }
        if self.buffer.is_empty() {
            return None;
        }
        let Some(size) = self.sizes.get(self.turn % self.sizes.len().max(1)).copied() else {
            return Some(self.buffer.split().freeze());
        };
        if self.buffer.len() < size && !at_end {
            return None;
        }
        self.turn += 1;
        Some(self.buffer.split_to(size.min(self.buffer.len())).freeze())
    }
}

fn replace_newlines(event: &Bytes, newline: Newline) -> Bytes {
    let mut out = Vec::with_capacity(event.len() + 8);
    for byte in event {
        match byte {
            b'\n' => out.extend_from_slice(newline.as_str().as_bytes()),
            other => out.push(*other),
        }
    }
    out.into()
}

fn trim_last(events: Events) -> impl Iterator<Item = Bytes> + Send {
    let mut events = events.peekable();
    std::iter::from_fn(move || {
        let event = events.next()?;
        if events.peek().is_some() {
            return Some(event);
        }
        let end = event.iter().rposition(|b| !matches!(b, b'\n' | b'\r')).map_or(0, |i| i + 1);
        Some(event.slice(..end))
    })
}

fn gzip(bytes: &[u8]) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    // Writing into a Vec cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default().into()
}
