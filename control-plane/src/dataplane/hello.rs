//! What an Envoy says first, and whether it may follow.

use futures::{Stream, StreamExt as _};
use sluicegate_core::proto::dataplane::{Hello, SyncUp, sync_up};
use tokio::time::timeout;
use tonic::Status;

use super::{HELLO_TIMEOUT, is_node_name};
use crate::publisher::{MAX_BUCKETS, Published};

/// Older Envoys crash when clients leave while the filter resumes their requests.
pub const OLDEST_ENVOY: [u32; 3] = [1, 38, 2];
const DEFAULT_BUCKETS: u32 = 65_536;
const MIN_BUCKETS: u32 = 4_096;
/// A bucket of so many keys on average is a boot's start; past four times as many it alarms.
const KEYS_PER_BUCKET: usize = 16;

/// Waits for it, and refuses an Envoy that cannot be served.
pub(super) async fn hello<S>(up: &mut S) -> Result<Hello, Status>
where
    S: Stream<Item = Result<SyncUp, Status>> + Unpin,
{
    let first =
        timeout(HELLO_TIMEOUT, up.next()).await.map_err(|_| Status::deadline_exceeded("no hello within 5 s"))?;
    let Some(sync_up::M::Hello(hello)) = first.transpose()?.and_then(|message| message.m) else {
        return Err(Status::failed_precondition("the first message must be a hello"));
    };
    check(&hello)?;
    Ok(hello)
}

fn check(hello: &Hello) -> Result<(), Status> {
    if !is_node_name(&hello.node) {
        return Err(Status::invalid_argument("the hello names no node"));
    }
    if hello.subscriber > 1 {
        return Err(Status::invalid_argument("subscriber must be 0 or 1"));
    }
    if hello.buckets != 0 && (!hello.buckets.is_power_of_two() || hello.buckets > MAX_BUCKETS) {
        return Err(Status::invalid_argument("the bucket count must be a power of two up to 2^20"));
    }
    if [&hello.filter_version, &hello.envoy_version].into_iter().any(|v| v.len() > 128 || v.contains('\0')) {
        return Err(Status::invalid_argument("a version is no version"));
    }
    match version(&hello.envoy_version) {
        Some(version) if version < OLDEST_ENVOY => {
            let [major, minor, patch] = OLDEST_ENVOY;
            tracing::error!(
                node = hello.node,
                version = hello.envoy_version,
                oldest = format!("{major}.{minor}.{patch}"),
                "an Envoy is too old and is refused: it crashes under this filter"
            );
            Err(Status::failed_precondition(format!(
                "Envoy {} is too old: {major}.{minor}.{patch} or newer",
                hello.envoy_version
            )))
        }
        Some(_) => Ok(()),
        None => {
            tracing::warn!(node = hello.node, version = hello.envoy_version, "an Envoy does not state its version");
            Ok(())
        }
    }
}

/// The first three numbers of a version such as `1.40.0` or `1.41.0-dev`.
pub fn version(text: &str) -> Option<[u32; 3]> {
    let mut numbers = text.split(['.', '-', '+']).map_while(|part| part.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next()?])
}

/// The count that the boot states, or for a new one a count that suits the keys there are.
pub(super) fn buckets_of(hello: &Hello, published: &Published) -> u32 {
    if hello.buckets != 0 {
        return hello.buckets;
    }
    let wanted = u32::try_from(published.keys.len() / KEYS_PER_BUCKET).unwrap_or(MAX_BUCKETS);
    wanted.checked_next_power_of_two().unwrap_or(MAX_BUCKETS).clamp(DEFAULT_BUCKETS.max(MIN_BUCKETS), MAX_BUCKETS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("1.40.0"), Some([1, 40, 0]));
        assert_eq!(version("1.41.0-dev"), Some([1, 41, 0]));
        assert_eq!(version(""), None);
        assert_eq!(version("1.x"), None);
        let hello = |v: &str| Hello { node: "n".into(), envoy_version: v.into(), ..Hello::default() };
        assert!(check(&hello("1.38.2")).is_ok());
        assert!(check(&hello("1.100.0")).is_ok());
        assert_eq!(check(&hello("1.38.1")).unwrap_err().code(), tonic::Code::FailedPrecondition);
        assert_eq!(check(&Hello { buckets: 3, ..hello("1.40.0") }).unwrap_err().code(), tonic::Code::InvalidArgument);
    }
}
