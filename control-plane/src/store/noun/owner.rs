use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::super::{Fault, Write, WriteError, block};
use super::{Noun, Stored, Which, check_name, refer};

/// Whom all else belongs to.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Org {
    pub name: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Team {
    pub org: String,
    pub name: String,
}

/// A person or a service.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct User {
    pub org: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    /// An e-mail address or any other name.
    pub name: String,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct BlockFacts {
    /// All its keys are refused. Set by `block` and `unblock` only.
    pub blocked: bool,
}

const ORG: &str = "select id from org where name = $1";

/// The id of a team of an org.
pub(super) async fn team_of(conn: &mut PgConnection, org: i32, name: &str) -> Result<i32, WriteError> {
    let id: Option<i32> = sqlx::query_scalar("select id from team where org_id = $1 and name = $2")
        .bind(org)
        .bind(name)
        .fetch_optional(conn)
        .await?;
    id.ok_or_else(|| Fault::new("team", format!("no team of this org is named {name:?}")).into())
}

pub(in crate::store) async fn org_of(conn: &mut PgConnection, name: &str) -> Result<i32, WriteError> {
    refer(conn, ORG, "org", "org", name).await
}

/// Finds `<org>/<name>`, or a bare name that only one org has. `sql` takes the name and the org's name or null.
pub(super) async fn find_in_org(
    conn: &mut PgConnection,
    sql: &'static str,
    handle: &str,
) -> Result<Option<i32>, WriteError> {
    let (org, name) = match handle.split_once('/') {
        Some((org, name)) => (Some(org), name),
        None => (None, handle),
    };
    let ids: Vec<i32> = sqlx::query_scalar(sql).bind(name).bind(org).fetch_all(conn).await?;
    match ids.as_slice() {
        [] => Ok(None),
        [id] => Ok(Some(*id)),
        _ => {
            let message = format!("several orgs have {handle:?}; write <org>/{handle}");
            Err(WriteError::Conflict { field: String::new(), message })
        }
    }
}

/// Id, org, team, name, blocked, when created.
type UserRow = (i32, String, Option<String>, String, bool, chrono::DateTime<chrono::Utc>);

const FIND_TEAM: &str = "select x.id from team x join org o on o.id = x.org_id
     where x.name = $1 and ($2::text is null or o.name = $2) limit 2";
const FIND_USER: &str = "select x.id from app_user x join org o on o.id = x.org_id
     where x.name = $1 and ($2::text is null or o.name = $2) limit 2";

impl Noun for Org {
    const KIND: &'static str = "org";
    const HOLD: &'static str = "select from org where id = $1 for no key update";
    type Facts = BlockFacts;

    fn handle(&self) -> String {
        self.name.clone()
    }

    fn check(&self) -> Result<(), Fault> {
        check_name("name", &self.name, false)
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        Ok(sqlx::query_scalar(ORG).bind(handle).fetch_optional(conn).await?)
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<(i32, String, bool, chrono::DateTime<chrono::Utc>)> = sqlx::query_as(
            "select id, name, blocked, created_at from org
             where ($1::int is null or id = $1) and id > $2 order by id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(conn)
        .await?;
        let stored = |(id, name, blocked, created_at)| Stored {
            id,
            noun: Self { name },
            facts: BlockFacts { blocked },
            created_at,
        };
        Ok(rows.into_iter().map(stored).collect())
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        Ok(sqlx::query_scalar("insert into org (name) values ($1) returning id")
            .bind(&self.name)
            .fetch_one(write.conn())
            .await?)
    }

    async fn update(&self, write: &mut Write, id: i32, _old: &Self) -> Result<(), WriteError> {
        sqlx::query("update org set name = $2 where id = $1").bind(id).bind(&self.name).execute(write.conn()).await?;
        Ok(())
    }

    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        block::remove_owner::<Self>(write, id).await
    }
}

impl Noun for Team {
    const KIND: &'static str = "team";
    const HOLD: &'static str = "select from team where id = $1 for no key update";
    type Facts = BlockFacts;

    fn handle(&self) -> String {
        format!("{}/{}", self.org, self.name)
    }

    fn check(&self) -> Result<(), Fault> {
        check_name("name", &self.name, false)
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        find_in_org(conn, FIND_TEAM, handle).await
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<(i32, String, String, bool, chrono::DateTime<chrono::Utc>)> = sqlx::query_as(
            "select t.id, o.name, t.name, t.blocked, t.created_at from team t join org o on o.id = t.org_id
             where ($1::int is null or t.id = $1) and t.id > $2 order by t.id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(conn)
        .await?;
        let stored = |(id, org, name, blocked, created_at)| Stored {
            id,
            noun: Self { org, name },
            facts: BlockFacts { blocked },
            created_at,
        };
        Ok(rows.into_iter().map(stored).collect())
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        let org = org_of(write.conn(), &self.org).await?;
        Ok(sqlx::query_scalar("insert into team (org_id, name) values ($1, $2) returning id")
            .bind(org)
            .bind(&self.name)
            .fetch_one(write.conn())
            .await?)
    }

    async fn update(&self, write: &mut Write, id: i32, old: &Self) -> Result<(), WriteError> {
        stays_in_org(&self.org, &old.org)?;
        sqlx::query("update team set name = $2 where id = $1").bind(id).bind(&self.name).execute(write.conn()).await?;
        Ok(())
    }

    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        block::remove_owner::<Self>(write, id).await
    }
}

impl Noun for User {
    const KIND: &'static str = "user";
    const HOLD: &'static str = "select from app_user where id = $1 for no key update";
    type Facts = BlockFacts;

    fn handle(&self) -> String {
        format!("{}/{}", self.org, self.name)
    }

    fn check(&self) -> Result<(), Fault> {
        check_name("name", &self.name, false)
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        find_in_org(conn, FIND_USER, handle).await
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<UserRow> = sqlx::query_as(
            "select u.id, o.name, t.name, u.name, u.blocked, u.created_at
             from app_user u join org o on o.id = u.org_id left join team t on t.id = u.team_id
             where ($1::int is null or u.id = $1) and u.id > $2 order by u.id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(conn)
        .await?;
        let stored = |(id, org, team, name, blocked, created_at)| Stored {
            id,
            noun: Self { org, team, name },
            facts: BlockFacts { blocked },
            created_at,
        };
        Ok(rows.into_iter().map(stored).collect())
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        let org = org_of(write.conn(), &self.org).await?;
        let team = self.team_id(write, org).await?;
        Ok(sqlx::query_scalar("insert into app_user (org_id, team_id, name) values ($1, $2, $3) returning id")
            .bind(org)
            .bind(team)
            .bind(&self.name)
            .fetch_one(write.conn())
            .await?)
    }

    /// A user who changes the team takes the keys along.
    async fn update(&self, write: &mut Write, id: i32, old: &Self) -> Result<(), WriteError> {
        stays_in_org(&self.org, &old.org)?;
        let org = org_of(write.conn(), &self.org).await?;
        let team = self.team_id(write, org).await?;
        sqlx::query("update app_user set name = $2, team_id = $3 where id = $1")
            .bind(id)
            .bind(&self.name)
            .bind(team)
            .execute(write.conn())
            .await?;
        if self.team != old.team {
            let moved: Vec<Vec<u8>> =
                sqlx::query_scalar("update api_key set team_id = $2 where user_id = $1 returning hash")
                    .bind(id)
                    .bind(team)
                    .fetch_all(write.conn())
                    .await?;
            let identities: Vec<Vec<u8>> = sqlx::query_scalar("select hash from identity where user_id = $1")
                .bind(id)
                .fetch_all(write.conn())
                .await?;
            write.keys_changed(moved.iter().chain(&identities).map(|hash| super::key::prefix(hash)));
        }
        Ok(())
    }

    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        block::remove_owner::<Self>(write, id).await
    }
}

impl User {
    async fn team_id(&self, write: &mut Write, org: i32) -> Result<Option<i32>, WriteError> {
        match &self.team {
            Some(team) => Ok(Some(team_of(write.conn(), org, team).await?)),
            None => Ok(None),
        }
    }
}

fn stays_in_org(new: &str, old: &str) -> Result<(), Fault> {
    if new == old { Ok(()) } else { Err(Fault::new("org", "cannot change: usage was booked on the old one")) }
}
