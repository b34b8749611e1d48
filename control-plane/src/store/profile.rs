//! Profiles: what a key may do, interned by content.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use prost::Message as _;
use sluicegate_core::proto::dataplane::{Network, ProfileBody};
use sqlx::PgConnection;

use super::{Fault, WriteError, slot};

/// How many profiles an Envoy can hold. The index of one is its id modulo this, and no two that exist share an index.
pub const PROFILE_SLOTS: i32 = 4096;

/// Serialises the writers that add a profile.
const LOCK: i64 = 0x7072_6f66_696c_6500;

/// The canonical encoding: sorted, without doubles, so that equal rights are equal bytes.
pub(super) fn encode(models: Option<&[i32]>, networks: &[IpNet]) -> Vec<u8> {
    let ids: BTreeSet<u32> = models.unwrap_or_default().iter().map(|id| id.cast_unsigned()).collect();
    let networks: BTreeSet<IpNet> = networks.iter().map(IpNet::trunc).collect();
    let network = |net: IpNet| Network {
        address: match net.network() {
            IpAddr::V4(address) => address.octets().to_vec().into(),
            IpAddr::V6(address) => address.octets().to_vec().into(),
        },
        prefix: u32::from(net.prefix_len()),
    };
    ProfileBody {
        any_model: models.is_none(),
        models: ids.into_iter().collect(),
        networks: networks.into_iter().map(network).collect(),
    }
    .encode_to_vec()
}

/// The id of the profile with this body, a new one where there is none.
pub(super) async fn intern(conn: &mut PgConnection, body: &[u8]) -> Result<i32, WriteError> {
    if let Some(id) = find(conn, body).await? {
        return Ok(id);
    }
    sqlx::query("select pg_advisory_xact_lock($1)").bind(LOCK).execute(&mut *conn).await?;
    if let Some(id) = find(conn, body).await? {
        return Ok(id);
    }
    let taken = slots(conn).await?;
    let id = match slot::next_free(conn, "profile_id", PROFILE_SLOTS, &taken).await? {
        Some(id) => Some(id),
        None => {
            let taken = sweep(conn).await?;
            slot::next_free(conn, "profile_id", PROFILE_SLOTS, &taken).await?
        }
    };
    let id = id.ok_or_else(|| {
        let message = format!("more than {PROFILE_SLOTS} different combinations of models and networks are in use");
        Fault::new("models", message)
    })?;
    sqlx::query("insert into profile (id, body) values ($1, $2)").bind(id).bind(body).execute(&mut *conn).await?;
    Ok(id)
}

/// Holds the row, so that no sweep takes it before the key that will name it is written.
async fn find(conn: &mut PgConnection, body: &[u8]) -> Result<Option<i32>, sqlx::Error> {
    sqlx::query_scalar("select id from profile where body = $1 for key share").bind(body).fetch_optional(conn).await
}

async fn slots(conn: &mut PgConnection) -> Result<BTreeSet<i32>, sqlx::Error> {
    let ids: Vec<i32> = sqlx::query_scalar("select id % $1 from profile").bind(PROFILE_SLOTS).fetch_all(conn).await?;
    Ok(ids.into_iter().collect())
}

/// Removes profiles that no key names. One that another writer is about to name is held by it and skipped.
async fn sweep(conn: &mut PgConnection) -> Result<BTreeSet<i32>, sqlx::Error> {
    sqlx::query(
        "delete from profile where id in (
             select id from profile p where not exists (select from api_key where profile_id = p.id)
                 and not exists (select from identity where profile_id = p.id)
             for update skip locked)",
    )
    .execute(&mut *conn)
    .await?;
    slots(conn).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rights_are_equal_bytes() {
        let net = |s: &str| s.parse::<IpNet>().unwrap();
        let a = encode(Some(&[3, 1, 3]), &[net("10.0.0.0/8"), net("2001:db8::/32")]);
        let b = encode(Some(&[1, 3]), &[net("2001:db8::/32"), net("10.0.0.0/8"), net("10.0.0.0/8")]);
        assert_eq!(a, b);
        assert_ne!(encode(None, &[]), encode(Some(&[]), &[]));
    }
}
