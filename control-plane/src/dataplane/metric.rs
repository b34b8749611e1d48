//! Gauges that must go down again whichever way a stream ends.

/// Counts one open stream for as long as it lives.
#[derive(Debug)]
pub(super) struct OpenStream {
    kind: &'static str,
}

impl OpenStream {
    pub(super) fn new(kind: &'static str) -> Self {
        metrics::gauge!("sluicegate_streams_open", "kind" => kind).increment(1.0);
        Self { kind }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        metrics::gauge!("sluicegate_streams_open", "kind" => self.kind).decrement(1.0);
    }
}
