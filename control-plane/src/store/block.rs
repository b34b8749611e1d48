//! Blocked owners: one small write, however many keys they have.

use serde_json::json;
use sluicegate_core::noun::OwnerKind;
use sluicegate_core::state::blocked::MAX_BLOCKED;
use sqlx::PgConnection;

use super::noun::{self, BlockFacts, Noun, Org, Team, User};
use super::{Action, Store, StoreError, Write, WriteError};

/// What can be blocked as a whole. All statements take its id.
pub trait Blockable: Noun<Facts = BlockFacts> {
    const OWNER: OwnerKind;
    const SET_BLOCKED: &'static str;
    /// Takes its row, so that no key is made under it meanwhile.
    const CLOSE: &'static str;
    /// The first four bytes of its keys' hashes.
    const PREFIXES: &'static str;
    const DELETE: &'static str;
}

impl Blockable for Org {
    const OWNER: OwnerKind = OwnerKind::Org;
    const SET_BLOCKED: &'static str = "update org set blocked = $2 where id = $1";
    const CLOSE: &'static str = "select from org where id = $1 for update";
    const PREFIXES: &'static str =
        "select ('x' || encode(substr(hash, 1, 4), 'hex'))::bit(32)::int from key_record where org_id = $1";
    const DELETE: &'static str = "delete from org where id = $1";
}

impl Blockable for Team {
    const OWNER: OwnerKind = OwnerKind::Team;
    const SET_BLOCKED: &'static str = "update team set blocked = $2 where id = $1";
    const CLOSE: &'static str = "select from team where id = $1 for update";
    /// Those of its users too: a user's keys are in the user's team.
    const PREFIXES: &'static str =
        "select ('x' || encode(substr(hash, 1, 4), 'hex'))::bit(32)::int from key_record where team_id = $1";
    const DELETE: &'static str = "delete from team where id = $1";
}

impl Blockable for User {
    const OWNER: OwnerKind = OwnerKind::User;
    const SET_BLOCKED: &'static str = "update app_user set blocked = $2 where id = $1";
    const CLOSE: &'static str = "select from app_user where id = $1 for update";
    const PREFIXES: &'static str =
        "select ('x' || encode(substr(hash, 1, 4), 'hex'))::bit(32)::int from key_record where user_id = $1";
    const DELETE: &'static str = "delete from app_user where id = $1";
}

impl Write {
    /// Blocks or unblocks an owner; doing it again changes nothing. Returns the owner's id.
    ///
    /// # Errors
    /// Where there is none. [`Write::commit`] refuses to block more than Envoys hold.
    pub async fn set_blocked<T: Blockable>(&mut self, reference: &str, blocked: bool) -> Result<i32, WriteError> {
        let id = noun::fetch::<T>(self.conn(), reference).await?.id;
        let owner = noun::hold::<T>(self, id).await?;
        if owner.facts.blocked == blocked {
            return Ok(id);
        }
        sqlx::query(T::SET_BLOCKED).bind(id).bind(blocked).execute(self.conn()).await?;
        if blocked {
            sqlx::query("insert into blocked_owner (kind, id) values ($1, $2) on conflict do nothing")
        } else {
            sqlx::query("delete from blocked_owner where kind = $1 and id = $2")
        }
        .bind(T::OWNER as i16)
        .bind(id)
        .execute(self.conn())
        .await?;
        self.blocks_changed();
        let action = if blocked { Action::Block } else { Action::Unblock };
        self.audit(action, T::KIND, owner.noun.handle(), json!({}));
        Ok(id)
    }
}

/// Deletes an owner with all it has. It is listed as blocked for a day, so that Envoys refuse at once, before the
/// change of each of its keys has reached them.
pub(super) async fn remove_owner<T: Blockable>(write: &mut Write, id: i32) -> Result<(), WriteError> {
    sqlx::query(T::CLOSE).bind(id).execute(write.conn()).await?;
    let prefixes: Vec<i32> = sqlx::query_scalar(T::PREFIXES).bind(id).fetch_all(write.conn()).await?;
    sqlx::query(T::DELETE).bind(id).execute(write.conn()).await?;
    sqlx::query(
        "insert into blocked_owner (kind, id, gone_at) values ($1, $2, now())
         on conflict (kind, id) do update set gone_at = excluded.gone_at",
    )
    .bind(T::OWNER as i16)
    .bind(id)
    .execute(write.conn())
    .await?;
    write.keys_changed(prefixes);
    write.blocks_changed();
    Ok(())
}

/// Keeps the list as short as Envoys take it; `refuse` says whether too many are an error. Deleted owners make room, the
/// oldest first: their keys are gone. Only right under the lock of the counter, which keeps others from adding to the list.
pub(super) async fn fit(conn: &mut PgConnection, refuse: bool) -> Result<(), WriteError> {
    let most = i64::try_from(MAX_BLOCKED).unwrap_or(i64::MAX);
    sqlx::query(
        "delete from blocked_owner where (kind, id) in (
             select kind, id from blocked_owner where gone_at is not null order by gone_at
             limit greatest(0, (select count(*) from blocked_owner) - $1))",
    )
    .bind(most)
    .execute(&mut *conn)
    .await?;
    let count: i64 = sqlx::query_scalar("select count(*) from blocked_owner").fetch_one(conn).await?;
    if refuse && count > most {
        let message = format!(
            "{most} owners are blocked, as many as an Envoy holds: unblock or delete some, or block their org or team"
        );
        return Err(WriteError::Conflict { field: String::new(), message });
    }
    Ok(())
}

impl Store {
    /// Forgets owners that were deleted more than a day ago: every Envoy has the change of their keys by then or starts over.
    /// Returns how many. The list that Envoys hold shrinks with its next change.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn forget_gone_owners(&self) -> Result<u64, StoreError> {
        // Blocked by themselves, and deleted with what they were in.
        sqlx::query(
            "update blocked_owner b set gone_at = now() where gone_at is null
                 and not exists (select from org where b.kind = $1 and id = b.id)
                 and not exists (select from team where b.kind = $2 and id = b.id)
                 and not exists (select from app_user where b.kind = $3 and id = b.id)",
        )
        .bind(OwnerKind::Org as i16)
        .bind(OwnerKind::Team as i16)
        .bind(OwnerKind::User as i16)
        .execute(&self.pool)
        .await?;
        let gone = sqlx::query("delete from blocked_owner where gone_at < now() - interval '1 day'")
            .execute(&self.pool)
            .await?;
        Ok(gone.rows_affected())
    }
}
