use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::super::{Endpoint, EndpointError, Fault, Write, WriteError};
use super::{NoFacts, Noun, Stored, Which, check_length, check_token};

/// A vendor account: where it answers and which dialect it speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    pub name: String,
    pub dialect: Dialect,
    /// `https://api.openai.com/v1`: everything before the dialect's own path.
    pub base_url: String,
    /// PEM of the authority that signed its certificate; absent: the public roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Loopback, link-local and metadata addresses are refused otherwise.
    #[serde(default)]
    pub allow_private: bool,
}

/// The public roots are some 200 KB.
const MAX_CA_BYTES: usize = 256 << 10;

/// The wire format a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    Openai,
}

impl Dialect {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Openai => "openai",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        (name == "openai").then_some(Self::Openai)
    }
}

impl Provider {
    /// # Errors
    /// What is wrong with `base_url`.
    pub fn endpoint(&self) -> Result<Endpoint, EndpointError> {
        Endpoint::parse(&self.base_url, self.allow_private)
    }
}

/// Certificates to trust.
pub(super) fn check_ca(pem: &str) -> Result<(), Fault> {
    use rustls_pki_types::{CertificateDer, pem::PemObject as _};
    check_length("ca", pem, MAX_CA_BYTES)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match certificates {
        Ok(some) if !some.is_empty() => Ok(()),
        Ok(_) | Err(_) => Err(Fault::new("ca", "holds no PEM certificate")),
    }
}

#[derive(sqlx::FromRow)]
struct Row {
    id: i32,
    name: String,
    dialect: String,
    base_url: String,
    ca: Option<String>,
    allow_private: bool,
    created_at: chrono::DateTime<chrono::Utc>,
}

impl TryFrom<Row> for Stored<Provider> {
    type Error = sqlx::Error;

    fn try_from(row: Row) -> Result<Self, sqlx::Error> {
        let dialect = Dialect::from_name(&row.dialect)
            .ok_or_else(|| sqlx::Error::Decode(format!("dialect {:?} is not of this build", row.dialect).into()))?;
        let noun =
            Provider { name: row.name, dialect, base_url: row.base_url, ca: row.ca, allow_private: row.allow_private };
        Ok(Self { id: row.id, noun, facts: NoFacts {}, created_at: row.created_at })
    }
}

impl Noun for Provider {
    const KIND: &'static str = "provider";
    const HOLD: &'static str = "select from provider where id = $1 for no key update";
    type Facts = NoFacts;

    fn handle(&self) -> String {
        self.name.clone()
    }

    fn check(&self) -> Result<(), Fault> {
        check_token("name", &self.name, false)?;
        self.endpoint().map_err(|e| Fault::new("base_url", e.to_string()))?;
        self.ca.as_deref().map_or(Ok(()), check_ca)
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        Ok(sqlx::query_scalar("select id from provider where name = $1").bind(handle).fetch_optional(conn).await?)
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        let rows: Vec<Row> = sqlx::query_as(
            "select * from provider where ($1::int is null or id = $1) and id > $2 order by id limit $3",
        )
        .bind(which.id)
        .bind(which.after)
        .bind(which.limit)
        .fetch_all(conn)
        .await?;
        rows.into_iter().map(Stored::try_from).collect()
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        write.policy_changed();
        Ok(sqlx::query_scalar(
            "insert into provider (name, dialect, base_url, ca, allow_private) values ($1, $2, $3, $4, $5) returning id",
        )
        .bind(&self.name)
        .bind(self.dialect.name())
        .bind(&self.base_url)
        .bind(&self.ca)
        .bind(self.allow_private)
        .fetch_one(write.conn())
        .await?)
    }

    async fn update(&self, write: &mut Write, id: i32, _old: &Self) -> Result<(), WriteError> {
        write.policy_changed();
        sqlx::query(
            "update provider set name = $2, dialect = $3, base_url = $4, ca = $5, allow_private = $6 where id = $1",
        )
        .bind(id)
        .bind(&self.name)
        .bind(self.dialect.name())
        .bind(&self.base_url)
        .bind(&self.ca)
        .bind(self.allow_private)
        .execute(write.conn())
        .await?;
        Ok(())
    }

    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        write.policy_changed();
        write.credential_gone();
        let used: Option<String> = sqlx::query_scalar(
            "select m.name from model_target t join backend b on b.id = t.backend_id join model m on m.id = t.model_id
             where b.provider_id = $1 order by m.name limit 1",
        )
        .bind(id)
        .fetch_optional(write.conn())
        .await?;
        if let Some(model) = used {
            let message = format!("provider {:?} is in use by model {model:?}", self.name);
            return Err(WriteError::Conflict { field: String::new(), message });
        }
        sqlx::query("delete from backend where provider_id = $1").bind(id).execute(write.conn()).await?;
        sqlx::query("delete from provider where id = $1").bind(id).execute(write.conn()).await?;
        Ok(())
    }
}
