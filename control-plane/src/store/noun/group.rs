use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::super::{Fault, Write, WriteError};
use super::model::model_ids;
use super::{NoFacts, Noun, Stored, Which, check_length, check_name, refer_all};

/// The group of a node token that names none.
pub(in crate::store) const DEFAULT: &str = "default";

const MAX_DESCRIPTION_BYTES: usize = 1024;

/// Envoys that hold the same things.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Group {
    pub name: String,
    #[serde(default)]
    pub description: String,
    /// Names of the orgs whose keys and users it serves. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orgs: Option<Vec<String>>,
    /// Names of the models it serves. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    /// Names of the credentials it may hold; targets that are paid with others it does not know. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Vec<String>>,
}

impl Group {
    fn scope(&self) -> [Option<&Vec<String>>; 3] {
        [self.orgs.as_ref(), self.models.as_ref(), self.credentials.as_ref()]
    }

    async fn write_scope(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        let orgs = refer_all(write.conn(), ORGS, "orgs", "org", self.orgs.as_deref()).await?;
        let models = model_ids(write.conn(), self.models.as_deref(), "models").await?;
        let names = self.credentials.as_deref();
        let credentials = refer_all(write.conn(), CREDENTIALS, "credentials", "credential", names).await?;
        sqlx::query("update envoy_group set orgs = $2, models = $3, credentials = $4 where id = $1")
            .bind(id)
            .bind(orgs)
            .bind(models)
            .bind(credentials)
            .execute(write.conn())
            .await?;
        write.scope_changed(id);
        Ok(())
    }
}

const ORGS: &str =
    "select x.id from unnest($1::text[]) with ordinality n (name, i) left join org x using (name) order by n.i";
const CREDENTIALS: &str =
    "select x.id from unnest($1::text[]) with ordinality n (name, i) left join credential x using (name) order by n.i";

type Row =
    (i32, String, String, Option<Vec<String>>, Option<Vec<String>>, Option<Vec<String>>, chrono::DateTime<chrono::Utc>);

impl Noun for Group {
    const KIND: &'static str = "group";
    const HOLD: &'static str = "select from envoy_group where id = $1 for no key update";
    type Facts = NoFacts;

    fn handle(&self) -> String {
        self.name.clone()
    }

    fn check(&self) -> Result<(), Fault> {
        check_name("name", &self.name, false)?;
        check_length("description", &self.description, MAX_DESCRIPTION_BYTES)?;
        for (field, names) in ["orgs", "models", "credentials"].into_iter().zip(self.scope()) {
            let names = names.map(Vec::as_slice).unwrap_or_default();
            let mut seen = std::collections::BTreeSet::new();
            if let Some(i) = names.iter().position(|name| !seen.insert(name)) {
                return Err(Fault::new(format!("{field}[{i}]"), "stands in this list already"));
            }
        }
        Ok(())
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        Ok(sqlx::query_scalar("select id from envoy_group where name = $1").bind(handle).fetch_optional(conn).await?)
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<Row> = sqlx::query_as(
            "select g.id, g.name, g.description,
                    case when g.orgs is not null then array(
                        select x.name from unnest(g.orgs) with ordinality u (id, i) join org x using (id) order by u.i) end,
                    case when g.models is not null then array(
                        select x.name from unnest(g.models) with ordinality u (id, i) join model x using (id) order by u.i) end,
                    case when g.credentials is not null then array(
                        select x.name from unnest(g.credentials) with ordinality u (id, i) join credential x using (id)
                        order by u.i) end,
                    g.created_at
             from envoy_group g where ($1::int is null or g.id = $1) and g.id > $2 order by g.id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(conn)
        .await?;
        let stored = |(id, name, description, orgs, models, credentials, created_at): Row| Stored {
            id,
            noun: Self { name, description, orgs, models, credentials },
            facts: NoFacts {},
            created_at,
        };
        Ok(rows.into_iter().map(stored).collect())
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        let id = sqlx::query_scalar("insert into envoy_group (name, description) values ($1, $2) returning id")
            .bind(&self.name)
            .bind(&self.description)
            .fetch_one(write.conn())
            .await?;
        if self.scope() != [None; 3] {
            self.write_scope(write, id).await?;
        }
        Ok(id)
    }

    async fn update(&self, write: &mut Write, id: i32, old: &Self) -> Result<(), WriteError> {
        if old.name == DEFAULT && self.name != DEFAULT {
            return Err(Fault::new("name", "the default group keeps its name").into());
        }
        sqlx::query("update envoy_group set name = $2, description = $3 where id = $1")
            .bind(id)
            .bind(&self.name)
            .bind(&self.description)
            .execute(write.conn())
            .await?;
        if self.scope() != old.scope() {
            self.write_scope(write, id).await?;
        }
        Ok(())
    }

    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        if self.name == DEFAULT {
            let message = "the default group stays".to_owned();
            return Err(WriteError::Conflict { field: String::new(), message });
        }
        sqlx::query("delete from envoy_group where id = $1").bind(id).execute(write.conn()).await?;
        Ok(())
    }
}
