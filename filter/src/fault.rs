//! Traps the VM where a request asks for it, for tests. As shipped nothing of it is left: see the feature `fault`.

/// Where a trap can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    RequestHeaders,
    RequestBody,
    /// Just before an admitted request is marked.
    Admit,
    AdapterHeaders,
    AdapterBody,
    ResponseHeaders,
    ResponseBody,
    Log,
    Tick,
    GrpcMessage,
}

#[cfg(not(feature = "fault"))]
mod imp {
    use crate::host::Headers;

    #[inline(always)]
    pub const fn ask(_: &Headers) {}

    #[inline(always)]
    pub const fn at(_: super::Place) {}
}

#[cfg(feature = "fault")]
mod imp {
    use std::cell::Cell;

    use super::Place;
    use crate::host::{self, Headers, LogLevel};

    thread_local! {
        static ASKED: Cell<Option<Place>> = const { Cell::new(None) };
    }

    /// `x-sluicegate-fault: trap-at=<place>`: the next time this VM comes to the place, whoever brings it there.
    pub fn ask(headers: &Headers) {
        for (_, value) in headers.iter().filter(|(name, _)| *name == b"x-sluicegate-fault") {
            ASKED.set(place(value));
        }
    }

    pub fn at(place: Place) {
        if ASKED.get() == Some(place) {
            // These words tell the two builds of the module apart, too.
            host::log(LogLevel::Warn, "sluicegate: a trap was asked for");
            core::arch::wasm32::unreachable();
        }
    }

    fn place(value: &[u8]) -> Option<Place> {
        Some(match value.strip_prefix(b"trap-at=")? {
            b"request-headers" => Place::RequestHeaders,
            b"request-body" => Place::RequestBody,
            b"admit" => Place::Admit,
            b"adapter-headers" => Place::AdapterHeaders,
            b"adapter-body" => Place::AdapterBody,
            b"response-headers" => Place::ResponseHeaders,
            b"response-body" => Place::ResponseBody,
            b"log" => Place::Log,
            b"tick" => Place::Tick,
            b"grpc-message" => Place::GrpcMessage,
            _ => return None,
        })
    }
}

pub use imp::{ask, at};
