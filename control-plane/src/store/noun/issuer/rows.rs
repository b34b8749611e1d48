//! How an issuer is stored: names of orgs and models as ids.

use std::collections::BTreeMap;

use serde_json::Value;
use sqlx::PgConnection;
use sqlx::types::Json;

use super::super::super::{Fault, WriteError};
use super::super::model::model_ids;
use super::super::owner::org_of;
use super::super::{NoFacts, Stored, Which};
use super::{ClaimPath, Grant, Issuer, OrgBy, Required, Roles};

/// The names an issuer refers to, found.
pub(super) struct References {
    org: Option<i32>,
    /// In the order of `org_by.orgs`.
    orgs: Vec<i32>,
    models: Option<Vec<i32>>,
    /// In the order of the grants.
    roles: Vec<Option<Vec<i32>>>,
}

impl References {
    pub(super) async fn find(conn: &mut PgConnection, issuer: &Issuer) -> Result<Self, WriteError> {
        let org = match &issuer.org {
            Some(name) => Some(org_of(conn, name).await?),
            None => None,
        };
        let mut orgs = Vec::new();
        for (value, name) in issuer.org_by.iter().flat_map(|by| &by.orgs) {
            let field = format!("org_by.orgs[{value:?}]");
            orgs.push(org_of(conn, name).await.map_err(|_| Fault::new(field, format!("no org is named {name:?}")))?);
        }
        let models = model_ids(conn, issuer.models.as_deref(), "models").await?;
        let mut roles = Vec::new();
        for (i, grant) in issuer.roles.iter().flat_map(|roles| &roles.grants).enumerate() {
            roles.push(model_ids(conn, grant.models.as_deref(), &format!("roles.grants[{i}].models")).await?);
        }
        Ok(Self { org, orgs, models, roles })
    }
}

const COLUMNS: &str = "name = $1, issuer = $2, audiences = $3, jwks_uri = $4, jwks = $5, ca = $6, allow_private = $7,
    org_id = $8, org_claim = $9, user_claim = $10, team_claim = $11, required = $12, models = $13, roles_claim = $14";

pub(super) async fn insert(conn: &mut PgConnection, issuer: &Issuer, found: &References) -> Result<i32, WriteError> {
    let insert = "insert into issuer (name, issuer, audiences, jwks_uri, jwks, ca, allow_private, org_id, org_claim,
                                      user_claim, team_claim, required, models, roles_claim)
                  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) returning id";
    let (id,): (i32,) = bind(sqlx::query_as(insert), issuer, found).fetch_one(&mut *conn).await?;
    write_lists(conn, id, issuer, found).await?;
    Ok(id)
}

pub(super) async fn update(
    conn: &mut PgConnection,
    id: i32,
    issuer: &Issuer,
    found: &References,
) -> Result<(), WriteError> {
    let update = sqlx::AssertSqlSafe(format!("update issuer set {COLUMNS} where id = $15 returning id"));
    let (id,): (i32,) = bind(sqlx::query_as(update), issuer, found).bind(id).fetch_one(&mut *conn).await?;
    sqlx::query("delete from issuer_org where issuer_id = $1").bind(id).execute(&mut *conn).await?;
    sqlx::query("delete from issuer_role where issuer_id = $1").bind(id).execute(&mut *conn).await?;
    write_lists(conn, id, issuer, found).await
}

type ReturningId<'q> = sqlx::query::QueryAs<'q, sqlx::Postgres, (i32,), sqlx::postgres::PgArguments>;

fn bind<'q>(query: ReturningId<'q>, issuer: &'q Issuer, found: &'q References) -> ReturningId<'q> {
    let path = |claim: Option<&'q ClaimPath>| claim.map(|claim| claim.0.as_slice());
    query
        .bind(&issuer.name)
        .bind(&issuer.issuer)
        .bind(&issuer.audiences)
        .bind(&issuer.jwks_uri)
        .bind(&issuer.jwks)
        .bind(&issuer.ca)
        .bind(issuer.allow_private)
        .bind(found.org)
        .bind(path(issuer.org_by.as_ref().map(|by| &by.claim)))
        .bind(path(issuer.user_claim.as_ref()))
        .bind(path(issuer.team_claim.as_ref()))
        .bind(Json(&issuer.require))
        .bind(&found.models)
        .bind(path(issuer.roles.as_ref().map(|roles| &roles.claim)))
}

async fn write_lists(conn: &mut PgConnection, id: i32, issuer: &Issuer, found: &References) -> Result<(), WriteError> {
    for (value, org) in issuer.org_by.iter().flat_map(|by| by.orgs.keys()).zip(&found.orgs) {
        sqlx::query("insert into issuer_org (issuer_id, value, org_id) values ($1, $2, $3)")
            .bind(id)
            .bind(value)
            .bind(org)
            .execute(&mut *conn)
            .await?;
    }
    let grants = issuer.roles.iter().flat_map(|roles| &roles.grants);
    for (position, (grant, models)) in (0_i32..).zip(grants.zip(&found.roles)) {
        sqlx::query("insert into issuer_role (issuer_id, position, value, models) values ($1, $2, $3, $4)")
            .bind(id)
            .bind(position)
            .bind(&grant.role)
            .bind(models)
            .execute(&mut *conn)
            .await?;
    }
    Ok(())
}

#[derive(sqlx::FromRow)]
struct Row {
    id: i32,
    name: String,
    issuer: String,
    audiences: Vec<String>,
    jwks_uri: Option<String>,
    jwks: Option<Value>,
    ca: Option<String>,
    allow_private: bool,
    org: Option<String>,
    org_claim: Option<Vec<String>>,
    user_claim: Option<Vec<String>>,
    team_claim: Option<Vec<String>>,
    required: Json<Vec<Required>>,
    models: Option<Vec<String>>,
    roles_claim: Option<Vec<String>>,
    created_at: chrono::DateTime<chrono::Utc>,
}

pub(super) async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Issuer>>> {
    let rows: Vec<Row> = sqlx::query_as(
        "select i.id, i.name, i.issuer, i.audiences, i.jwks_uri, i.jwks, i.ca, i.allow_private, o.name as org,
                i.org_claim, i.user_claim, i.team_claim, i.required, i.roles_claim, i.created_at,
                case when i.models is not null then array(
                    select m.name from unnest(i.models) with ordinality as x (id, n) join model m on m.id = x.id
                    order by x.n) end as models
         from issuer i
         left join org o on o.id = i.org_id
         where ($1::int is null or i.id = $1) and i.id > $2 order by i.id limit $3",
    )
    .bind(which.id)
    .bind(which.after)
    .bind(which.limit)
    .fetch_all(&mut *conn)
    .await?;
    let mut issuers = Vec::with_capacity(rows.len());
    for row in rows {
        let orgs: Vec<(String, String)> = sqlx::query_as(
            "select x.value, o.name from issuer_org x join org o on o.id = x.org_id where x.issuer_id = $1",
        )
        .bind(row.id)
        .fetch_all(&mut *conn)
        .await?;
        let grants: Vec<(String, Option<Vec<String>>)> = sqlx::query_as(
            "select r.value, case when r.models is not null then array(
                        select m.name from unnest(r.models) with ordinality as x (id, n) join model m on m.id = x.id
                        order by x.n) end
             from issuer_role r where r.issuer_id = $1 order by r.position",
        )
        .bind(row.id)
        .fetch_all(&mut *conn)
        .await?;
        issuers.push(stored(row, orgs.into_iter().collect(), grants));
    }
    Ok(issuers)
}

fn stored(row: Row, orgs: BTreeMap<String, String>, grants: Vec<(String, Option<Vec<String>>)>) -> Stored<Issuer> {
    let grants = grants.into_iter().map(|(role, models)| Grant { role, models }).collect();
    let noun = Issuer {
        name: row.name,
        issuer: row.issuer,
        audiences: row.audiences,
        jwks_uri: row.jwks_uri,
        jwks: row.jwks,
        ca: row.ca,
        allow_private: row.allow_private,
        org: row.org,
        org_by: row.org_claim.map(|claim| OrgBy { claim: ClaimPath(claim), orgs }),
        user_claim: row.user_claim.map(ClaimPath),
        team_claim: row.team_claim.map(ClaimPath),
        require: row.required.0,
        models: row.models,
        roles: row.roles_claim.map(|claim| Roles { claim: ClaimPath(claim), grants }),
    };
    Stored { id: row.id, noun, facts: NoFacts {}, created_at: row.created_at }
}
