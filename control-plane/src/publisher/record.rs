//! A key as Envoys hold it.
use super::index::Record;
use crate::store::KeyRow;

pub(super) fn encode(key: &KeyRow) -> Record {
    let mut r = [0_u8; 48];
    r[..16].copy_from_slice(&key.hash[..16]);
    for (i, n) in [key.org, key.team, key.user, key.id, key.profile, u32::from(key.disabled)].into_iter().enumerate() {
        r[16 + 4 * i..20 + 4 * i].copy_from_slice(&n.to_le_bytes());
    }
    r[40..48].copy_from_slice(&key.expires_at.unwrap_or(0).to_le_bytes());
    r
}

pub(super) fn profile(record: &Record) -> u32 {
    u32::from_le_bytes(record[32..36].try_into().unwrap())
}
