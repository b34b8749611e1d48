//! `Flow`: usage records up, acknowledgements down; questions up, answers down.

use std::sync::Arc;

use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt as _};
use sluicegate_core::proto::dataplane::{Acked, FlowDown, FlowHello, FlowUp, Records, flow_down, flow_up};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::Status;

use super::ledger::{Ledger, Outcome};
use super::resolve::Resolver;
use super::{HELLO_TIMEOUT, NodeIdentity};
use crate::store::Recorded;

/// Batches of one stream on their way to the database. Beyond it the stream is not read, and HTTP/2 holds the sender back.
const MAX_IN_FLIGHT: usize = 32;
/// Questions of one stream that are looked into at once.
const MAX_ASKED: usize = 256;

/// An Envoy's VM, as its first message names it.
#[derive(Clone, Debug)]
struct Sender {
    node: Arc<str>,
    boot: u64,
}

/// What a stream works with.
pub(super) struct Context {
    pub(super) ledger: Ledger,
    pub(super) resolver: Resolver,
    pub(super) node: Arc<NodeIdentity>,
}

/// Runs one stream until the Envoy ends it. What was not committed is not acknowledged; the Envoy sends it again.
pub(super) async fn run<S>(
    context: Context,
    mut up: S,
    down: mpsc::Sender<Result<FlowDown, Status>>,
) -> Result<(), Status>
where
    S: Stream<Item = Result<FlowUp, Status>> + Unpin,
{
    let sender = hello(&mut up).await?;
    let _open = super::metric::OpenStream::new("flow");
    let Context { ledger, resolver, node } = context;
    let (mut in_flight, mut asked) = (FuturesUnordered::new(), FuturesUnordered::new());
    loop {
        tokio::select! {
            message = up.next(), if in_flight.len() < MAX_IN_FLIGHT && asked.len() < MAX_ASKED => match message {
                None => break,
                Some(message) => match message?.m {
                    Some(flow_up::M::Records(records)) => in_flight.push(book(&ledger, &sender, records)),
                    Some(flow_up::M::Resolve(question)) => asked.push(resolver.resolve(&node, question)),
                    Some(flow_up::M::Hello(_)) => return Err(Status::failed_precondition("a second hello")),
                    // A message of a newer filter.
                    None => {}
                },
            },
            Some(resolved) = asked.next() => {
                let message = FlowDown { m: Some(flow_down::M::Resolved(resolved)) };
                if down.send(Ok(message)).await.is_err() {
                    return Ok(());
                }
            }
            Some(acked) = in_flight.next() => {
                if let Some(acked) = acked {
                    let message = FlowDown { m: Some(flow_down::M::Acked(acked)) };
                    if down.send(Ok(message)).await.is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
    // The Envoy closed its half; what is on its way is still acknowledged.
    while let Some(acked) = in_flight.next().await {
        if let Some(acked) = acked {
            let _ = down.send(Ok(FlowDown { m: Some(flow_down::M::Acked(acked)) })).await;
        }
    }
    Ok(())
}

async fn hello<S>(up: &mut S) -> Result<Sender, Status>
where
    S: Stream<Item = Result<FlowUp, Status>> + Unpin,
{
    let first =
        timeout(HELLO_TIMEOUT, up.next()).await.map_err(|_| Status::deadline_exceeded("no hello within 5 s"))?;
    match first.transpose()?.and_then(|message| message.m) {
        Some(flow_up::M::Hello(FlowHello { node, boot, vm: _ })) if super::is_node_name(&node) => {
            Ok(Sender { node: node.into(), boot })
        }
        Some(flow_up::M::Hello(_)) => Err(Status::invalid_argument("the hello names no node")),
        _ => Err(Status::failed_precondition("the first message must be a hello")),
    }
}

/// `None` when the batch was not committed.
async fn book(ledger: &Ledger, sender: &Sender, records: Records) -> Option<Acked> {
    let vm = records.vm;
    let seqs: Vec<u64> = records.records.iter().map(|r| r.seq).collect();
    let recorded = records
        .records
        .into_iter()
        .map(|record| Recorded { node: Arc::clone(&sender.node), boot: sender.boot, vm, record })
        .collect();
    match ledger.book(recorded).await {
        Outcome::Committed => Some(Acked { vm, ranges: ranges(seqs) }),
        Outcome::Failed => None,
    }
}

/// First, length, first, length .. of what is in `seqs`, ascending.
fn ranges(mut seqs: Vec<u64>) -> Vec<u64> {
    seqs.sort_unstable();
    seqs.dedup();
    let mut ranges: Vec<u64> = Vec::new();
    for seq in seqs {
        match ranges.as_mut_slice() {
            [.., first, length] if first.checked_add(*length) == Some(seq) => *length += 1,
            _ => ranges.extend([seq, 1]),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acks_are_packed() {
        assert!(ranges(vec![]).is_empty());
        assert_eq!(ranges(vec![3, 1, 2, 2, 7]), [1, 3, 7, 1]);
        assert_eq!(ranges(vec![u64::MAX, 0, u64::MAX - 1]), [0, 1, u64::MAX - 1, 2]);
    }
}
