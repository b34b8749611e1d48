//! The host calls this filter makes, each returning what the host answered.
//!
//! proxy-wasm's own wrappers panic on a status they do not expect, and a panic kills every stream of the worker;
//! here an unexpected status is an `Err` like any other. ABI: proxy-wasm 0.2.1.
#![expect(unsafe_code, reason = "the proxy-wasm ABI passes raw pointers; every call is wrapped here")]

mod headers;
mod raw;

use std::ptr::null_mut;

use sluicegate_core::exchange::Mono;

use headers::serialize;
pub use headers::{Headers, parse};

/// A host call's refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    pub const NOT_FOUND: Self = Self(1);
    pub const CAS_MISMATCH: Self = Self(8);
}

pub type HostResult<T> = Result<T, Status>;

#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum LogLevel {
    Info = 2,
    Warn = 3,
    Error = 4,
}

#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Buffer {
    RequestBody = 0,
    ResponseBody = 1,
    GrpcMessage = 5,
    PluginConfiguration = 7,
}

#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Map {
    RequestHeaders = 0,
    ResponseHeaders = 2,
}

#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Metric {
    Counter = 0,
    Gauge = 1,
    Histogram = 2,
}

fn check(status: u32) -> HostResult<()> {
    if status == 0 { Ok(()) } else { Err(Status(status)) }
}

/// Takes over what the host wrote into memory that it got from `proxy_on_memory_allocate`.
fn take(data: *mut u8, size: usize) -> Vec<u8> {
    if data.is_null() || size == 0 {
        return Vec::new();
    }
    // SAFETY: the host allocated exactly `size` bytes through `proxy_on_memory_allocate`, filled them, and forgot them.
    unsafe { Vec::from_raw_parts(data, size, size) }
}

fn fetch(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> HostResult<Vec<u8>> {
    let mut data = null_mut();
    let mut size = 0;
    check(call(&mut data, &mut size))?;
    Ok(take(data, size))
}

/// The host's monotonic clock, one for all VMs of the process.
pub fn now() -> Mono {
    Mono(clock(1))
}

/// The host's wall clock, ns since 1970.
pub fn wall_clock() -> u64 {
    clock(0)
}

fn clock(id: u32) -> u64 {
    let mut time = 0;
    // Both clocks exist on every host; were one not to, time stands still, and nothing is confirmed any more.
    unsafe { raw::clock_time_get(id, 1_000, &mut time) };
    time
}

/// Random, from the host's source.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    unsafe { raw::random_get(bytes.as_mut_ptr(), bytes.len()) };
    u64::from_le_bytes(bytes)
}

/// One line in Envoy's log. Never with a secret or a client's text.
pub fn log(level: LogLevel, message: &str) {
    // SAFETY: pointer and length of a live slice, as in every call below.
    unsafe { raw::proxy_log(level as u32, message.as_ptr(), message.len()) };
}

/// Of the root that is the effective context; 0 stops its ticks.
pub fn set_tick_period(milliseconds: u32) -> HostResult<()> {
    check(unsafe { raw::proxy_set_tick_period_milliseconds(milliseconds) })
}

/// At most `max` bytes from `start`; fewer at the buffer's end.
pub fn buffer(buffer: Buffer, start: usize, max: usize) -> HostResult<Vec<u8>> {
    match fetch(|data, size| unsafe { raw::proxy_get_buffer_bytes(buffer as u32, start, max, data, size) }) {
        Err(Status::NOT_FOUND) => Ok(Vec::new()),
        other => other,
    }
}

/// Replaces the first `size` bytes. The host refuses a start in the middle, so there is none to give.
pub fn replace_prefix(buffer: Buffer, size: usize, bytes: &[u8]) -> HostResult<()> {
    check(unsafe { raw::proxy_set_buffer_bytes(buffer as u32, 0, size, bytes.as_ptr(), bytes.len()) })
}

/// All headers, in one call: cheaper than two single reads.
pub fn headers(map: Map) -> HostResult<Headers> {
    fetch(|data, size| unsafe { raw::proxy_get_header_map_pairs(map as u32, data, size) }).map(Headers)
}

pub fn remove_header(map: Map, name: &[u8]) -> HostResult<()> {
    check(unsafe { raw::proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) })
}

/// Sets a header to one value, replacing all it had.
pub fn set_header(map: Map, name: &[u8], value: &[u8]) -> HostResult<()> {
    check(unsafe {
        raw::proxy_replace_header_map_value(map as u32, name.as_ptr(), name.len(), value.as_ptr(), value.len())
    })
}

/// A property by its path; `None` where there is none.
pub fn property(path: &[&str]) -> HostResult<Option<Vec<u8>>> {
    let path = path.join("\0");
    match fetch(|data, size| unsafe { raw::proxy_get_property(path.as_ptr(), path.len(), data, size) }) {
        Ok(value) => Ok(Some(value)),
        Err(Status::NOT_FOUND) => Ok(None),
        Err(status) => Err(status),
    }
}

/// Whether the effective context's request was never on a connection to an upstream.
pub fn never_connected() -> bool {
    matches!(property(&["upstream", "local_address"]), Ok(None))
}

/// Writes filter state `wasm.<name>`.
pub fn set_filter_state(name: &str, value: &[u8]) -> HostResult<()> {
    check(unsafe { raw::proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) })
}

/// A shared-data value and its compare-and-set number; `None` where the key was never set.
pub fn shared_data(key: &[u8]) -> HostResult<Option<(Vec<u8>, u32)>> {
    let mut cas = 0;
    match fetch(|data, size| unsafe { raw::proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &mut cas) }) {
        Ok(value) => Ok(Some((value, cas))),
        Err(Status::NOT_FOUND) => Ok(None),
        Err(status) => Err(status),
    }
}

/// `false` when the value has moved on. `cas` must not be 0: to the host that means "whatever is there".
pub fn set_shared_data(key: &[u8], value: &[u8], cas: u32) -> HostResult<bool> {
    match check(unsafe { raw::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) }) {
        Ok(()) => Ok(true),
        Err(Status::CAS_MISMATCH) => Ok(false),
        Err(status) => Err(status),
    }
}

/// Answers the effective context's client; `details` become Envoy's response code details.
pub fn send_local_response(status: u32, headers: &[(&str, &[u8])], body: &[u8], details: &str) -> HostResult<()> {
    let headers = serialize(headers);
    check(unsafe {
        raw::proxy_send_local_response(
            status,
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            -1,
        )
    })
}

/// Resumes the effective context's request. Exactly once, at most 32 in one callback: more overflow the VM's stack.
pub fn continue_request() -> HostResult<()> {
    const REQUEST: u32 = 0;
    check(unsafe { raw::proxy_continue_stream(REQUEST) })
}

/// Makes `context` the one that later calls act on. After a failure the old one still is: check before any other call.
pub fn set_effective_context(context: u32) -> HostResult<()> {
    check(unsafe { raw::proxy_set_effective_context(context) })
}

/// Opens a bidirectional gRPC stream to a method of an Envoy cluster and returns its token.
pub fn grpc_stream(cluster: &str, service: &str, method: &str) -> HostResult<u32> {
    let metadata = serialize(&[]);
    let mut token = 0;
    check(unsafe {
        raw::proxy_grpc_stream(
            cluster.as_ptr(),
            cluster.len(),
            service.as_ptr(),
            service.len(),
            method.as_ptr(),
            method.len(),
            metadata.as_ptr(),
            metadata.len(),
            &mut token,
        )
    })?;
    Ok(token)
}

/// Sends one message. On a stream the host has closed this succeeds and the message is lost: forget tokens on close.
pub fn grpc_send(token: u32, message: &[u8]) -> HostResult<()> {
    check(unsafe { raw::proxy_grpc_send(token, message.as_ptr(), message.len(), 0) })
}

/// Ends our half and forgets the stream.
pub fn grpc_close(token: u32) -> HostResult<()> {
    check(unsafe { raw::proxy_grpc_close(token) })
}

pub fn define_metric(kind: Metric, name: &str) -> HostResult<u32> {
    let mut id = 0;
    check(unsafe { raw::proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &mut id) })?;
    Ok(id)
}

/// Adds to a counter or gauge.
pub fn increment_metric(id: u32, by: i64) -> HostResult<()> {
    check(unsafe { raw::proxy_increment_metric(id, by) })
}

/// Sets a gauge, or records one value of a histogram.
pub fn record_metric(id: u32, value: u64) -> HostResult<()> {
    check(unsafe { raw::proxy_record_metric(id, value) })
}
