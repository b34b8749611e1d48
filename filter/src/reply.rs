//! Replies that the gate gives by itself.

use sluicegate_core::dialect::openai::error::refusal_body;
use sluicegate_core::exchange::{Head, OperationId};
use sluicegate_core::policy::names;
use sluicegate_core::refusal::Refusal;

use crate::host;

/// Answered without a key: whether this Envoy has had its whole state once.
const READY_PATH: &str = "/sluicegate/ready";

/// A whole reply to the client of the effective context.
#[derive(Debug)]
pub struct LocalReply {
    status: u32,
    body: Vec<u8>,
    operation: Option<OperationId>,
    retry_after: Option<u32>,
    /// Shown in Envoy's access log.
    details: &'static str,
}

impl LocalReply {
    pub fn json(status: u32, body: Vec<u8>, operation: OperationId) -> Self {
        Self { status, body, operation: Some(operation), retry_after: None, details: "sluicegate" }
    }

    pub fn refusal(refusal: &Refusal, operation: OperationId) -> Self {
        Self {
            status: refusal.status(),
            body: refusal_body(refusal, &operation.to_string()),
            operation: Some(operation),
            retry_after: refusal.retry_after(),
            details: refusal.code(),
        }
    }

    /// For what is asked without a key: readiness, and the `HEAD /` with which some clients look whether anyone is there.
    pub fn probe(head: &Head, ready: impl FnOnce() -> bool) -> Option<Self> {
        let plain = |status, body: &str| Self {
            status,
            body: body.as_bytes().to_vec(),
            operation: None,
            retry_after: None,
            details: "sluicegate_probe",
        };
        match (head.method.as_str(), head.path.as_str()) {
            ("GET" | "HEAD", READY_PATH) => Some(match ready() {
                true => plain(200, r#"{"ready":true}"#),
                false => plain(503, r#"{"ready":false}"#),
            }),
            ("GET" | "HEAD", "/") => Some(plain(200, r#"{"service":"sluicegate"}"#)),
            _ => None,
        }
    }

    /// Sends it. Should the host refuse, the request stays paused, and its catch-all route ends it.
    pub fn send(&self) {
        let id = self.operation.map(|o| o.to_string());
        let retry_after = self.retry_after.map(|s| s.to_string());
        let mut headers: Vec<(&str, &[u8])> = vec![("content-type", b"application/json")];
        headers.extend(id.as_deref().map(|id| (names::REQUEST_ID_HEADER, id.as_bytes())));
        headers.extend(retry_after.as_deref().map(|s| ("retry-after", s.as_bytes())));
        let _ = host::send_local_response(self.status, &headers, &self.body, self.details);
    }
}
