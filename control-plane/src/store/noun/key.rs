mod network;
mod secret;

use chrono::{DateTime, Utc};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::super::{Action, Fault, Write, WriteError, profile};
use super::model::model_ids;
use super::owner::{find_in_org, org_of, team_of};
use super::{Noun, Stored, Which, check_name, fetch, hold};

use network::Network;
use secret::Fresh;
pub(in crate::store) use secret::prefix;

/// What a client authenticates with: `sk-sg-<id>-<secret>`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub org: String,
    pub name: String,
    /// Absent where a user is named: the user's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Names of the models it may use. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Addresses and networks it may be used from. Empty: any.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub networks: Vec<Network>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::store::time::optional")]
    pub expires_at: Option<DateTime<Utc>>,
    #[serde(default)]
    pub disabled: bool,
    /// SHA-256 of a whole key, in hex, where the key was made elsewhere. Absent: one is made.
    #[serde(default, skip_serializing)]
    #[schema(write_only)]
    pub hash: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct KeyFacts {
    /// The public part of the key.
    pub key_id: String,
}

const FIND: &str = "select x.id from api_key x join org o on o.id = x.org_id
     where x.name = $1 and ($2::text is null or o.name = $2) limit 2";

/// The names of a key, resolved.
struct Resolved {
    org: i32,
    team: Option<i32>,
    user: Option<i32>,
    models: Option<Vec<i32>>,
    profile: i32,
}

impl Key {
    async fn resolve(&self, conn: &mut PgConnection) -> Result<Resolved, WriteError> {
        let org = org_of(conn, &self.org).await?;
        let mut team = match &self.team {
            Some(team) => Some(team_of(conn, org, team).await?),
            None => None,
        };
        let mut user = None;
        if let Some(name) = &self.user {
            // Held, so that the user does not change the team meanwhile.
            let found: Option<(i32, Option<i32>)> =
                sqlx::query_as("select id, team_id from app_user where org_id = $1 and name = $2 for share")
                    .bind(org)
                    .bind(name)
                    .fetch_optional(&mut *conn)
                    .await?;
            let (id, users_team) =
                found.ok_or_else(|| Fault::new("user", format!("no user of org {:?} is named {name:?}", self.org)))?;
            if team.is_some() && team != users_team {
                return Err(Fault::new("team", format!("is not the team of user {name:?}")).into());
            }
            (user, team) = (Some(id), users_team);
        }
        let models = model_ids(conn, self.models.as_deref(), "models").await?;
        let networks: Vec<IpNet> = self.networks.iter().map(|network| network.0).collect();
        let profile = profile::intern(conn, &profile::encode(models.as_deref(), &networks)).await?;
        Ok(Resolved { org, team, user, models, profile })
    }

    fn network_texts(&self) -> Vec<String> {
        self.networks.iter().map(|network| network.0.to_string()).collect()
    }
}

#[derive(sqlx::FromRow)]
struct Row {
    id: i32,
    public_id: String,
    org: String,
    name: String,
    team: Option<String>,
    user: Option<String>,
    models: Option<Vec<String>>,
    networks: Vec<String>,
    expires_at: Option<DateTime<Utc>>,
    disabled: bool,
    created_at: DateTime<Utc>,
}

impl TryFrom<Row> for Stored<Key> {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        let networks: Result<Vec<Network>, String> = row.networks.iter().map(|network| network.parse()).collect();
        let noun = Key {
            org: row.org,
            name: row.name,
            team: row.team,
            user: row.user,
            models: row.models,
            networks: networks.map_err(|e| sqlx::Error::Decode(e.into()))?,
            expires_at: row.expires_at,
            disabled: row.disabled,
            hash: None,
        };
        Ok(Self { id: row.id, noun, facts: KeyFacts { key_id: row.public_id }, created_at: row.created_at })
    }
}

impl Noun for Key {
    const KIND: &'static str = "key";
    const HOLD: &'static str = "select from api_key where id = $1 for no key update";
    type Facts = KeyFacts;

    fn handle(&self) -> String {
        format!("{}/{}", self.org, self.name)
    }

    fn check(&self) -> Result<(), Fault> {
        check_name("name", &self.name, false)?;
        if let Some(hash) = &self.hash {
            Fresh::given(hash)?;
        }
        let models = self.models.as_deref().unwrap_or_default();
        for (i, model) in models.iter().enumerate() {
            if models.iter().take(i).any(|other| other == model) {
                return Err(Fault::new(format!("models[{i}]"), "stands in this list already"));
            }
        }
        if models.len() > 1000 {
            return Err(Fault::new("models", "are more than 1000"));
        }
        if self.networks.len() > 100 {
            return Err(Fault::new("networks", "are more than 100"));
        }
        Ok(())
    }

    async fn hidden_change(conn: &mut PgConnection, id: i32, new: &Self) -> sqlx::Result<bool> {
        let Some(hash) = &new.hash else { return Ok(false) };
        let stored: Vec<u8> =
            sqlx::query_scalar("select hash from api_key where id = $1").bind(id).fetch_one(conn).await?;
        Ok(!hash.eq_ignore_ascii_case(&hex::encode(stored)))
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        let by_public_id: Option<i32> = sqlx::query_scalar("select id from api_key where public_id = $1")
            .bind(handle)
            .fetch_optional(&mut *conn)
            .await?;
        match by_public_id {
            Some(id) => Ok(Some(id)),
            None => find_in_org(conn, FIND, handle).await,
        }
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<Row> = sqlx::query_as(
            "select k.id, k.public_id, o.name as org, k.name, t.name as team, u.name as user, k.networks::text[],
                    k.expires_at, k.disabled, k.created_at,
                    case when k.models is not null then array(
                        select m.name from unnest(k.models) with ordinality as x (id, i) join model m on m.id = x.id
                        order by x.i) end as models
             from api_key k join org o on o.id = k.org_id
             left join team t on t.id = k.team_id left join app_user u on u.id = k.user_id
             where ($1::int is null or k.id = $1) and k.id > $2 order by k.id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(conn)
        .await?;
        rows.into_iter().map(Stored::try_from).collect()
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        let fresh = Fresh::of(self.hash.as_deref())?;
        let resolved = self.resolve(write.conn()).await?;
        let id = sqlx::query_scalar(
            "insert into api_key (public_id, hash, name, org_id, team_id, user_id, models, networks, profile_id,
                                  disabled, expires_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8::text[]::cidr[], $9, $10, $11) returning id",
        )
        .bind(&fresh.id)
        .bind(&fresh.hash)
        .bind(&self.name)
        .bind(resolved.org)
        .bind(resolved.team)
        .bind(resolved.user)
        .bind(resolved.models)
        .bind(self.network_texts())
        .bind(resolved.profile)
        .bind(self.disabled)
        .bind(self.expires_at)
        .fetch_one(write.conn())
        .await?;
        write.keys_changed([prefix(&fresh.hash)]);
        if let Some(secret) = fresh.secret {
            write.issue(self.handle(), secret);
        }
        Ok(id)
    }

    async fn update(&self, write: &mut Write, id: i32, old: &Self) -> Result<(), WriteError> {
        if self.org != old.org {
            return Err(Fault::new("org", "cannot change: usage was booked on the old one").into());
        }
        let resolved = self.resolve(write.conn()).await?;
        let hash: Vec<u8> = sqlx::query_scalar(
            "update api_key set name = $2, team_id = $3, user_id = $4, models = $5, networks = $6::text[]::cidr[],
                                profile_id = $7, disabled = $8, expires_at = $9
             where id = $1 returning hash",
        )
        .bind(id)
        .bind(&self.name)
        .bind(resolved.team)
        .bind(resolved.user)
        .bind(resolved.models)
        .bind(self.network_texts())
        .bind(resolved.profile)
        .bind(self.disabled)
        .bind(self.expires_at)
        .fetch_one(write.conn())
        .await?;
        write.keys_changed([prefix(&hash)]);
        match &self.hash {
            Some(hash) => replace(write, id, &Fresh::given(hash)?).await,
            None => Ok(()),
        }
    }

    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        let hash: Option<Vec<u8>> = sqlx::query_scalar("delete from api_key where id = $1 returning hash")
            .bind(id)
            .fetch_optional(write.conn())
            .await?;
        write.keys_changed(hash.iter().map(|hash| prefix(hash)));
        Ok(())
    }
}

/// Puts a new secret in the place of the old one, which dies with it.
async fn replace(write: &mut Write, id: i32, fresh: &Fresh) -> Result<(), WriteError> {
    let old: Vec<u8> = sqlx::query_scalar("select hash from api_key where id = $1 for update")
        .bind(id)
        .fetch_one(write.conn())
        .await?;
    sqlx::query("update api_key set public_id = $2, hash = $3 where id = $1")
        .bind(id)
        .bind(&fresh.id)
        .bind(&fresh.hash)
        .execute(write.conn())
        .await?;
    write.keys_changed([prefix(&old), prefix(&fresh.hash)]);
    Ok(())
}

impl Write {
    /// Gives a key a new secret; the old one is refused from the commit on. Returns the key's id.
    ///
    /// # Errors
    /// Where there is none.
    pub async fn rotate_key(&mut self, reference: &str) -> Result<i32, WriteError> {
        let id = fetch::<Key>(self.conn(), reference).await?.id;
        let key = hold::<Key>(self, id).await?;
        let fresh = Fresh::make()?;
        replace(self, key.id, &fresh).await?;
        self.audit(Action::Rotate, Key::KIND, key.noun.handle(), json!({ "key_id": fresh.id }));
        if let Some(secret) = fresh.secret {
            self.issue(key.noun.handle(), secret);
        }
        Ok(key.id)
    }
}
