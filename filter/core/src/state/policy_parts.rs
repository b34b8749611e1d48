//! The encoded policy, in parts: a VM that begins reads it from here.

use super::Stamp;
use super::bytes::{Fields, Writer};
use super::head::Head;
use super::store::{SharedData, StoreFault, keys, update};

/// The largest policy that is taken, in bytes.
pub const MAX_POLICY_BYTES: usize = 4 << 20;

/// Writes all parts, then head. A reader that comes between finds parts of two policies, and waits.
pub fn apply<S: SharedData>(store: &S, stamp: Stamp, parts: &[impl AsRef<[u8]>]) -> Result<(), StoreFault> {
    let count = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    for (index, part) in (0..).zip(parts) {
        update(store, &keys::policy_part(index), |value| {
            let newer = value.and_then(header).is_none_or(|(there, _)| there < stamp);
            newer.then(|| Writer::new(20 + part.as_ref().len()).stamp(stamp).u32(count).bytes(part.as_ref()))
        })?;
    }
    Head::raise(store, |head| head.policy = stamp)
}

/// The policy of `stamp`; `None` while not all of its parts are there.
pub fn read<S: SharedData>(store: &S, stamp: Stamp) -> Result<Option<Vec<u8>>, StoreFault> {
    let mut snapshot = Vec::new();
    let mut index = 0;
    loop {
        let Some((value, _)) = store.get(&keys::policy_part(index))? else { return Ok(None) };
        let Some((there, count)) = header(&value) else { return Ok(None) };
        if there != stamp {
            return Ok(None);
        }
        snapshot.extend(Fields::new(&value).map(part).unwrap_or_default());
        index += 1;
        if index >= count {
            return Ok(Some(snapshot));
        }
        if snapshot.len() > MAX_POLICY_BYTES {
            return Ok(None);
        }
    }
}

fn header(value: &[u8]) -> Option<(Stamp, u32)> {
    let mut f = Fields::new(value)?;
    Some((f.stamp()?, f.u32()?))
}

fn part(mut f: Fields<'_>) -> &[u8] {
    let _ = (f.stamp(), f.u32());
    f.rest()
}
