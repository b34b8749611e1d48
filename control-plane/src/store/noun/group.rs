use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::super::{Fault, Write, WriteError};
use super::{NoFacts, Noun, Stored, Which, check_length, check_name};

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
}

impl Noun for Group {
    const KIND: &'static str = "group";
    const HOLD: &'static str = "select from envoy_group where id = $1 for no key update";
    type Facts = NoFacts;

    fn handle(&self) -> String {
        self.name.clone()
    }

    fn check(&self) -> Result<(), Fault> {
        check_name("name", &self.name, false)?;
        check_length("description", &self.description, MAX_DESCRIPTION_BYTES)
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        Ok(sqlx::query_scalar("select id from envoy_group where name = $1").bind(handle).fetch_optional(conn).await?)
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<(i32, String, String, chrono::DateTime<chrono::Utc>)> = sqlx::query_as(
            "select id, name, description, created_at from envoy_group
             where ($1::int is null or id = $1) and id > $2 order by id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(conn)
        .await?;
        Ok(rows
            .into_iter()
            .map(|(id, name, description, created_at)| Stored {
                id,
                noun: Self { name, description },
                facts: NoFacts {},
                created_at,
            })
            .collect())
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        Ok(sqlx::query_scalar("insert into envoy_group (name, description) values ($1, $2) returning id")
            .bind(&self.name)
            .bind(&self.description)
            .fetch_one(write.conn())
            .await?)
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
