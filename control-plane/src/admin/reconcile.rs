//! What only the access log saw: its lines, read back into records.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sluicegate_core::exchange::log;
use sluicegate_core::proto::dataplane::Ended;
use utoipa::ToSchema;

use crate::store::{Reconciled, Recorded};

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
    /// Of the records, those of requests whose VM died: who asked for what is known, what it cost is not.
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
                record.ended = Ended::Trapped.into();
                record.last = true;
            }
            let (boot, vm) = (logged.origin.boot, logged.origin.vm);
            read.records.push(Recorded { node: Arc::clone(&node), boot, vm, record });
        }
    }
    read
}

#[cfg(test)]
mod tests {
    use sluicegate_core::exchange::log::{Origin, admitted, recorded};
    use sluicegate_core::proto::dataplane::Record;

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
}
