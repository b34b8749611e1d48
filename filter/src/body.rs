//! A client's body, which the host keeps while the gate reads it.

use sluicegate_core::exchange::{Reading, Turned};
use sluicegate_core::refusal::Refusal;

use crate::host::{self, Buffer, Map};

/// Bodies are read in windows: one host call each, and no more memory than this.
const WINDOW: usize = 64 << 10;

/// Reads what is new of the `size` bytes that the host keeps of a paused request's body.
pub fn read(mut reading: Box<Reading>, size: usize) -> Result<Box<Reading>, Box<Turned>> {
    loop {
        let from = usize::try_from(reading.received()).unwrap_or(usize::MAX);
        let want = size.saturating_sub(from).min(WINDOW);
        if want == 0 {
            return Ok(reading);
        }
        let window = host::buffer(Buffer::RequestBody, from, want).unwrap_or_default();
        if window.is_empty() {
            let refusal = Refusal::Internal { what: "the request's body is not readable" };
            return Err(reading.ticket.turned_away(refusal));
        }
        if let Err(refusal) = reading.push(&window) {
            return Err(reading.ticket.turned_away(refusal));
        }
    }
}

/// Decodes a compressed body until `until` (monotonic ns), and puts what it decodes to in its place. Returns how many bytes
/// that are; `None` while there is more to do.
pub fn decode(reading: &mut Reading, until: u64) -> Result<Option<u64>, Refusal> {
    loop {
        let received = reading.received();
        let piece = |from: u64, most: usize| {
            let want = usize::try_from(received.saturating_sub(from)).unwrap_or(most).min(most);
            match (want, usize::try_from(from)) {
                (0, _) | (_, Err(_)) => Vec::new(),
                (want, Ok(from)) => host::buffer(Buffer::RequestBody, from, want).unwrap_or_default(),
            }
        };
        if let Some(decoded) = reading.decode(piece)? {
            let size = usize::try_from(received).unwrap_or(usize::MAX);
            return host::replace_prefix(Buffer::RequestBody, size, &decoded)
                .and_then(|()| host::remove_header(Map::RequestHeaders, b"content-encoding"))
                .map(|()| Some(decoded.len() as u64))
                .map_err(|_| Refusal::Internal { what: "the decoded body is not writable" });
        }
        if host::now().0 >= until {
            return Ok(None);
        }
    }
}
