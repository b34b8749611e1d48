use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::super::{Fault, Write, WriteError};
use super::{NoFacts, Noun, Stored, Which, check_name, check_token, refer_all};

/// What a client asks for by name, and who answers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub name: String,
    /// Tried in this order. With weights, each weighted one is first for its share of the requests.
    pub targets: Vec<Target>,
}

/// A provider and what it calls the model.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    pub provider: String,
    pub model: String,
    /// Absent: the provider's only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// All targets have one, or none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}

const MAX_TARGETS: usize = 32;

/// Model id, provider, the provider's model, credential, weight.
type TargetRow = (i32, String, String, Option<String>, Option<i32>);

/// Finds the provider and the credential that a target names.
async fn resolve(conn: &mut PgConnection, i: usize, target: &Target) -> Result<(i32, Option<i32>), WriteError> {
    let field = |name: &str| format!("targets[{i}].{name}");
    let provider: Option<i32> = sqlx::query_scalar("select id from provider where name = $1")
        .bind(&target.provider)
        .fetch_optional(&mut *conn)
        .await?;
    let provider =
        provider.ok_or_else(|| Fault::new(field("provider"), format!("no provider is named {:?}", target.provider)))?;
    let Some(name) = &target.credential else { return Ok((provider, None)) };
    let found: Option<(i32, i32)> = sqlx::query_as("select id, provider_id from credential where name = $1")
        .bind(name)
        .fetch_optional(conn)
        .await?;
    match found {
        Some((id, of)) if of == provider => Ok((provider, Some(id))),
        Some(_) => {
            let message = format!("credential {name:?} is not one of provider {:?}", target.provider);
            Err(Fault::new(field("credential"), message).into())
        }
        None => Err(Fault::new(field("credential"), format!("no credential is named {name:?}")).into()),
    }
}

/// The ids of models by their names; `None` stays `None`.
pub(super) async fn model_ids(
    conn: &mut PgConnection,
    names: Option<&[String]>,
    field: &str,
) -> Result<Option<Vec<i32>>, WriteError> {
    refer_all(conn, MODELS, field, "model", names).await
}

const MODELS: &str =
    "select x.id from unnest($1::text[]) with ordinality n (name, i) left join model x using (name) order by n.i";

impl Model {
    async fn write_targets(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        sqlx::query("delete from model_target where model_id = $1").bind(id).execute(write.conn()).await?;
        for (i, target) in self.targets.iter().enumerate() {
            let (provider, credential) = resolve(write.conn(), i, target).await?;
            // `do update` and not `do nothing`, so that the row is returned either way.
            let backend: i32 = sqlx::query_scalar(
                "insert into backend (provider_id, model) values ($1, $2)
                 on conflict (provider_id, model) do update set model = excluded.model returning id",
            )
            .bind(provider)
            .bind(&target.model)
            .fetch_one(write.conn())
            .await?;
            sqlx::query(
                "insert into model_target (model_id, position, backend_id, credential_id, weight)
                 values ($1, $2, $3, $4, $5)",
            )
            .bind(id)
            .bind(i32::try_from(i).unwrap_or(i32::MAX))
            .bind(backend)
            .bind(credential)
            .bind(target.weight.map(|w| i32::try_from(w).unwrap_or(i32::MAX)))
            .execute(write.conn())
            .await?;
        }
        Ok(())
    }

    fn check_weights(&self) -> Result<(), Fault> {
        let weighted = self.targets.iter().filter(|t| t.weight.is_some()).count();
        for (i, target) in self.targets.iter().enumerate() {
            let fault = match target.weight {
                Some(0) => "must not be 0; leave the target out instead",
                Some(weight) if weight > 1_000_000 => "must not be over 1000000",
                None if weighted > 0 => "is missing: other targets have one",
                _ => continue,
            };
            return Err(Fault::new(format!("targets[{i}].weight"), fault));
        }
        Ok(())
    }
}

impl Noun for Model {
    const KIND: &'static str = "model";
    const HOLD: &'static str = "select from model where id = $1 for no key update";
    type Facts = NoFacts;

    fn handle(&self) -> String {
        self.name.clone()
    }

    fn check(&self) -> Result<(), Fault> {
        check_name("name", &self.name, true)?;
        if self.targets.is_empty() {
            return Err(Fault::new("targets", "must not be empty: a model needs someone who answers"));
        }
        if self.targets.len() > MAX_TARGETS {
            return Err(Fault::new("targets", format!("are more than {MAX_TARGETS}")));
        }
        let mut seen = BTreeSet::new();
        for (i, target) in self.targets.iter().enumerate() {
            check_token("model", &target.model, true).map_err(|f| f.under(&format!("targets[{i}]")))?;
            if !seen.insert((&target.provider, &target.model, &target.credential)) {
                return Err(Fault::new(format!("targets[{i}]"), "stands in this list already"));
            }
        }
        self.check_weights()
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        Ok(sqlx::query_scalar("select id from model where name = $1").bind(handle).fetch_optional(conn).await?)
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<(i32, String, chrono::DateTime<chrono::Utc>)> = sqlx::query_as(
            "select id, name, created_at from model
             where ($1::int is null or id = $1) and id > $2 order by id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(&mut *conn)
        .await?;
        let ids: Vec<i32> = rows.iter().map(|(id, ..)| *id).collect();
        let targets: Vec<TargetRow> = sqlx::query_as(
            "select t.model_id, p.name, b.model, c.name, t.weight
             from model_target t join backend b on b.id = t.backend_id join provider p on p.id = b.provider_id
             left join credential c on c.id = t.credential_id
             where t.model_id = any($1) order by t.model_id, t.position",
        )
        .bind(&ids)
        .fetch_all(conn)
        .await?;
        let mut of: BTreeMap<i32, Vec<Target>> = BTreeMap::new();
        for (id, provider, model, credential, weight) in targets {
            let weight = weight.map(i32::cast_unsigned);
            of.entry(id).or_default().push(Target { provider, model, credential, weight });
        }
        let stored = |(id, name, created_at)| {
            let targets = of.remove(&id).unwrap_or_default();
            Stored { id, noun: Self { name, targets }, facts: NoFacts {}, created_at }
        };
        Ok(rows.into_iter().map(stored).collect())
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        write.policy_changed();
        let id = sqlx::query_scalar("insert into model (name) values ($1) returning id")
            .bind(&self.name)
            .fetch_one(write.conn())
            .await?;
        self.write_targets(write, id).await?;
        Ok(id)
    }

    async fn update(&self, write: &mut Write, id: i32, _old: &Self) -> Result<(), WriteError> {
        write.policy_changed();
        sqlx::query("update model set name = $2 where id = $1").bind(id).bind(&self.name).execute(write.conn()).await?;
        self.write_targets(write, id).await
    }

    /// A key that may use this model keeps the rest of its list; an id in it that is gone gives nothing.
    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        write.policy_changed();
        sqlx::query("delete from model where id = $1").bind(id).execute(write.conn()).await?;
        Ok(())
    }
}
