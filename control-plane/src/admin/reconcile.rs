//! What only the access log saw: its lines, read back into records.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use prost::Message as _;
use serde::{Deserialize, Serialize};
use sluicegate_core::dialect::openai::{Operation, estimate::estimate_unread};
use sluicegate_core::exchange::log::{self, Counted};
use sluicegate_core::noun::{Source, Usage};
use sluicegate_core::policy::Policy;
use sluicegate_core::proto::dataplane::{Ended, Record};
use sluicegate_core::proto::policy::Snapshot;
use utoipa::ToSchema;

use crate::store::{Reconciled, Recorded, Store, StoreError};

/// What lines of an access log hold.
#[derive(Debug, Default)]
pub(super) struct Read {
    pub records: Vec<Recorded>,
    lines: u64,
    unreadable: u64,
    unfinished: u64,
}

/// The difference between an access log and the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    pub lines: u64,
    /// Records in them; lines of requests that were not admitted hold none.
    pub records: u64,
    /// Records that the ledger had.
    pub already: u64,
    /// Records that it has now.
    pub added: u64,
    /// Of the records, those of requests whose VM died: who asked for what is known, what it cost is estimated.
    pub unfinished: u64,
    /// Records that make no sense, such as those of more than a week ago.
    pub rejected: u64,
    /// Lines whose record is cut or garbled.
    pub unreadable: u64,
}

impl Read {
    pub fn difference(&self, reconciled: Reconciled) -> Difference {
        Difference {
            lines: self.lines,
            records: reconciled.seen,
            already: reconciled.already,
            added: reconciled.added,
            unfinished: self.unfinished,
            rejected: reconciled.rejected,
            unreadable: self.unreadable,
        }
    }
}

/// Reads the lines of an access log in the format that managed Envoys write.
pub(super) fn read(text: &str) -> Read {
    // The log does not name its Envoy; the boot in each record does.
    let node: Arc<str> = Arc::from("");
    let mut read = Read::default();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        read.lines += 1;
        let logged = match log::find(line) {
            None => continue,
            Some(Ok(logged)) => logged,
            Some(Err(_)) => {
                read.unreadable += 1;
                continue;
            }
        };
        for mut record in logged.records {
            if !logged.finished {
                read.unfinished += 1;
                estimate(&mut record, logged.counted);
            }
            let (boot, vm) = (logged.origin.boot, logged.origin.vm);
            read.records.push(Recorded { node: Arc::clone(&node), boot, vm, record });
        }
    }
    read
}

/// Makes the plan of a request whose VM died its record: nobody saw the answer but Envoy, which counted its bytes.
fn estimate(plan: &mut Record, counted: Option<Counted>) {
    plan.ended = Ended::Trapped.into();
    plan.last = true;
    let Some(Counted { status, upstream_sent, upstream_received }) = counted else { return };
    plan.status = status;
    if upstream_sent == 0 {
        (plan.usage, plan.source, plan.cost_nano) = (None, Source::None.to_wire().into(), Some(0));
        return;
    }
    if plan.route != Operation::Embeddings.name() {
        let read = plan.usage.map(|u| Usage::from_wire(&u)).unwrap_or_default();
        let output = estimate_unread(plan.stream, upstream_received);
        plan.usage = Some(Usage { output, ..read }.to_wire());
    }
}

/// Prices what is estimated by the policy it was admitted under; without that policy it stays unpriced.
///
/// # Errors
/// When the database does not answer.
pub(super) async fn price(store: &Store, records: &mut [Recorded]) -> Result<(), StoreError> {
    let mut policies: HashMap<u64, Option<Policy>> = HashMap::new();
    for Recorded { record, .. } in records.iter_mut().filter(|r| r.record.ended() == Ended::Trapped) {
        if record.cost_nano.is_some() {
            continue;
        }
        let revision = record.policy_revision;
        let policy = match policies.entry(revision) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let snapshot = store.policy_at(revision).await?.and_then(|bytes| Snapshot::decode(&bytes[..]).ok());
                new.insert(snapshot.and_then(|s| Policy::compile(&s, revision).ok()))
            }
        };
        let backend = policy.as_ref().and_then(|policy| policy.backend(record.backend));
        let usage = record.usage.map(|u| Usage::from_wire(&u)).unwrap_or_default();
        record.cost_nano = backend.and_then(|b| b.price.as_ref()?.cost(&usage)).map(|cost| cost.0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sluicegate_core::exchange::log::{Origin, admitted, recorded};

    use super::*;

    #[test]
    fn lines_become_records_and_a_dead_vms_say_so() {
        let origin = Origin { boot: 7, vm: 8, context: 9 };
        let record = |seq| Record {
            seq,
            operation: vec![1; 16].into(),
            ended: Ended::Complete.into(),
            last: true,
            ..Record::default()
        };
        let text = format!(
            "2026-01-02T03:04:05.678Z POST /v1/chat/completions 200 {}\nGET / 404 -\n\nx {}\nx {}\n",
            recorded(origin, &[record(1), record(2)]),
            admitted(origin, &record(3)),
            recorded(origin, &[record(4)]).trim_end_matches(']'),
        );
        let read = read(&text);
        assert_eq!((read.lines, read.unfinished, read.unreadable), (4, 1, 1));
        let seen: Vec<_> = read.records.iter().map(|r| (r.boot, r.vm, r.record.seq, r.record.ended())).collect();
        assert_eq!(seen, [(7, 8, 1, Ended::Complete), (7, 8, 2, Ended::Complete), (7, 8, 3, Ended::Trapped)]);
    }

    #[test]
    fn what_a_trapped_request_came_to_is_estimated_from_what_envoy_counted() {
        let plan = Record {
            operation: vec![1; 16].into(),
            source: Source::Estimated.to_wire().into(),
            usage: Some(Usage { input: 30, ..Usage::default() }.to_wire()),
            stream: true,
            ..Record::default()
        };
        let read = |upstream: &str| {
            let value = admitted(Origin { boot: 7, vm: 8, context: 9 }, &plan);
            let line =
                format!("t POST /v1/chat/completions 503 12 - wasm_fail_stream 99 88 counted=503,{upstream} {value}");
            let record = read(&line).records.remove(0).record;
            let usage = record.usage.unwrap_or_default();
            (record.status, record.source(), usage.input, usage.output, record.cost_nano)
        };
        assert_eq!(read("500,4000"), (503, plan.source(), 30, 20, None));
        assert_eq!(read("500,0"), (503, plan.source(), 30, 0, None), "the provider read the question");
        assert_eq!(read("0,0"), (503, Record::default().source(), 0, 0, Some(0)), "no provider was asked");
    }
}
