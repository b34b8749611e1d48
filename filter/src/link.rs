//! A gRPC stream to the control plane that is opened again when it breaks.

use crate::host;

const SERVICE: &str = "sluicegate.dataplane.v1.DataPlane";
const FIRST_RETRY_NS: u64 = 100_000_000;
const LAST_RETRY_NS: u64 = 3_200_000_000;

/// One stream, or the time until the next try.
#[derive(Debug)]
pub struct Link {
    method: &'static str,
    token: Option<u32>,
    retry_at: u64,
    backoff: u64,
}

impl Link {
    pub fn new(method: &'static str) -> Self {
        Self { method, token: None, retry_at: 0, backoff: FIRST_RETRY_NS }
    }

    /// Opens the stream if it is closed and its time has come; `true` when it was opened now, and wants its first message.
    /// The caller's root is the effective context.
    pub fn open(&mut self, cluster: &str, now: u64) -> bool {
        if self.token.is_some() || now < self.retry_at {
            return false;
        }
        match host::grpc_stream(cluster, SERVICE, self.method) {
            Ok(token) => {
                self.token = Some(token);
                true
            }
            Err(_) => {
                self.delay(now);
                false
            }
        }
    }

    pub fn is_open(&self) -> bool {
        self.token.is_some()
    }

    pub fn owns(&self, token: u32) -> bool {
        self.token == Some(token)
    }

    /// The other side is there: the next break is retried soon.
    pub fn works(&mut self) {
        self.backoff = FIRST_RETRY_NS;
    }

    /// The stream has closed. Its token is forgotten: a message sent on it would be lost in silence.
    pub fn closed(&mut self, now: u64) {
        self.token = None;
        self.delay(now);
    }

    /// Closes it from this side.
    pub fn close(&mut self, now: u64) {
        if let Some(token) = self.token.take() {
            let _ = host::grpc_close(token);
        }
        self.delay(now);
    }

    /// `false` when it could not be sent; then the stream is of no more use.
    pub fn send(&mut self, message: &[u8]) -> bool {
        match self.token {
            Some(token) => host::grpc_send(token, message).is_ok(),
            None => false,
        }
    }

    fn delay(&mut self, now: u64) {
        // Spread by the host's randomness, so that many Envoys do not come back in one moment.
        let jitter = host::random() % (self.backoff / 2).max(1);
        self.retry_at = now.saturating_add(self.backoff / 2).saturating_add(jitter);
        self.backoff = (self.backoff * 2).min(LAST_RETRY_NS);
    }
}
