//! A request's number, and what is known of it before it is admitted.

use super::{Identity, log};
use crate::proto::dataplane as wire;
use crate::refusal::Refusal;

/// A moment on the monotonic clock that all VMs of one Envoy share, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mono(pub u64);

impl Mono {
    /// Microseconds from `earlier` to here; 0 if it is later.
    pub fn micros_since(self, earlier: Self) -> u32 {
        u32::try_from(self.0.saturating_sub(earlier.0) / 1_000).unwrap_or(u32::MAX)
    }
}

/// The client's one request, 16 bytes. Printed as the request id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationId(pub [u8; 16]);

impl OperationId {
    /// Unique because (vm, seq) is: `vm` is random per VM incarnation, `seq` counts in it. The bits that make a UUID one
    /// of version 8 are set, so that it is valid everywhere.
    pub fn new(vm: u64, seq: u64) -> Self {
        const VERSION: u128 = 0xf << 76;
        const VARIANT: u128 = 0x3 << 62;
        let id = (u128::from(vm) << 64) | u128::from(seq);
        Self(((id & !VERSION & !VARIANT) | (0x8 << 76) | (0x2 << 62)).to_be_bytes())
    }
}

impl std::fmt::Display for OperationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const DASHES: [usize; 4] = [4, 6, 8, 10];
        let mut text = String::with_capacity(36);
        for (at, byte) in self.0.iter().enumerate() {
            if DASHES.contains(&at) {
                text.push('-');
            }
            text.extend(log::hex_digits(*byte));
        }
        f.write_str(&text)
    }
}

/// Made when a request's headers arrive; every end of the request is booked from it.
#[derive(Clone, Debug, Default)]
pub struct Ticket {
    /// Number of the record of the first attempt, or of the refusal.
    pub seq: u64,
    pub operation: OperationId,
    /// When the headers arrived.
    pub started: Mono,
    /// All 0 while the key is not known.
    pub identity: Identity,
    /// The client's conversation or agent run.
    pub session: String,
    /// Name of the route, empty where there is none.
    pub route: &'static str,
    /// As the client wrote it, cut.
    pub requested_model: String,
}

/// A request that is not let through.
#[derive(Debug)]
pub struct Turned {
    pub refusal: Refusal,
    pub ticket: Ticket,
}

impl Ticket {
    /// For the request number `seq` of the VM incarnation `vm`.
    pub fn new(vm: u64, seq: u64, started: Mono) -> Self {
        Self { seq, operation: OperationId::new(vm, seq), started, ..Self::default() }
    }

    /// The request is not let through.
    pub fn turned_away(self, refusal: Refusal) -> Box<Turned> {
        Box::new(Turned { refusal, ticket: self })
    }

    /// The record of a request that ended before it was admitted: refused, or (without a refusal) left by the client.
    /// Nothing ran, so it cost nothing. `now_ns` is control-plane time.
    pub fn close(&self, refusal: Option<&Refusal>, now: Mono, now_ns: i64) -> wire::Record {
        let ended = if refusal.is_some() { wire::Ended::Refused } else { wire::Ended::ClientGone };
        let total_us = now.micros_since(self.started);
        wire::Record {
            attempt: 1,
            last: true,
            status: refusal.map_or(0, Refusal::status),
            refusal: refusal.map(|r| r.code().to_owned()).unwrap_or_default(),
            ended: ended.into(),
            cost_nano: Some(0),
            total_us,
            gateway_us: if refusal.is_some() { total_us } else { 0 },
            ..self.record(now_ns)
        }
    }

    /// What all records of this request share.
    pub(super) fn record(&self, admitted_ns: i64) -> wire::Record {
        wire::Record {
            seq: self.seq,
            operation: self.operation.0.to_vec().into(),
            admitted_ns,
            org: self.identity.org,
            team: self.identity.team,
            user: self.identity.user,
            key: self.identity.key,
            session: self.session.clone(),
            requested_model: self.requested_model.clone(),
            route: self.route.to_owned(),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_id_is_a_uuid() {
        assert_eq!(OperationId::new(u64::MAX, 5).to_string(), "ffffffff-ffff-8fff-8000-000000000005");
        assert_eq!(OperationId::new(0, 0).to_string(), "00000000-0000-8000-8000-000000000000");
    }
}
