//! A client's body, which the host keeps while the gate reads it.

use std::io::{BufReader, Read};

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

/// Puts what a compressed body decodes to in its place.
pub fn decode(mut reading: Box<Reading>) -> Result<Box<Reading>, Box<Turned>> {
    if !reading.is_encoded() {
        return Ok(reading);
    }
    let size = usize::try_from(reading.received()).unwrap_or(usize::MAX);
    let written = reading.decode(BufReader::with_capacity(WINDOW, Body { at: 0, size })).and_then(|instead| {
        host::replace_prefix(Buffer::RequestBody, size, &instead)
            .and_then(|()| host::remove_header(Map::RequestHeaders, b"content-encoding"))
            .map_err(|_| Refusal::Internal { what: "the decoded body is not writable" })
    });
    match written {
        Ok(()) => Ok(reading),
        Err(refusal) => Err(reading.ticket.turned_away(refusal)),
    }
}

/// The request's body, which the host keeps while it is paused.
struct Body {
    at: usize,
    size: usize,
}

impl Read for Body {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let want = to.len().min(self.size.saturating_sub(self.at));
        let window = match want {
            0 => return Ok(0),
            want => host::buffer(Buffer::RequestBody, self.at, want).unwrap_or_default(),
        };
        let read = window.as_slice().read(to)?;
        self.at = self.at.saturating_add(read);
        Ok(read)
    }
}
