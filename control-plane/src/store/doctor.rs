//! What is in the store but cannot work, or not as somebody would expect.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use super::feed::read_credentials;
use super::{CredentialRow, MIGRATIONS, Store, StoreError};

/// A target of a model, and what it lacks.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Lack {
    pub model: String,
    pub provider: String,
    /// The provider's name for the model.
    pub provider_model: String,
}

/// The database itself.
#[derive(Clone, Debug)]
pub struct Examination {
    /// `server_version_num`: 180001 is 18.1.
    pub version: i32,
    /// The last migration that was applied, and the last that this build has.
    pub schema: (i64, i64),
    pub now: DateTime<Utc>,
}

/// An authority by which somebody is trusted.
#[derive(Clone, Debug, sqlx::FromRow)]
pub struct Authority {
    /// `provider openai`
    pub owner: String,
    /// PEM, one certificate or several.
    pub ca: String,
}

/// What [`Store::examine`] found.
#[derive(Debug)]
pub struct Examined {
    /// All of them; whether they can be read only the control plane's environment tells.
    pub credentials: Vec<CredentialRow>,
    /// Targets at providers that have no credential at all.
    pub without_credential: Vec<Lack>,
    pub without_price: Vec<Lack>,
    pub authorities: Vec<Authority>,
    pub database: Examination,
}

const WITHOUT_CREDENTIAL: &str = "select m.name as model, p.name as provider, b.model as provider_model
     from model_target t join model m on m.id = t.model_id join backend b on b.id = t.backend_id
     join provider p on p.id = b.provider_id
     where not exists (select from credential c where c.provider_id = p.id) order by p.name, m.name, t.position";

const WITHOUT_PRICE: &str = "select m.name as model, p.name as provider, b.model as provider_model
     from model_target t join model m on m.id = t.model_id join backend b on b.id = t.backend_id
     join provider p on p.id = b.provider_id
     where not exists (select from price x where x.provider_id = b.provider_id and x.model = b.model)
     order by m.name, t.position";

const AUTHORITIES: &str = "select 'provider ' || name as owner, ca from provider where ca is not null
     union all select 'issuer ' || name, ca from issuer where ca is not null order by 1";

const DATABASE: &str = "select current_setting('server_version_num')::int,
        (select coalesce(max(version), 0) from _sqlx_migrations where success), clock_timestamp()";

impl Store {
    /// Looks for what is missing, in one snapshot.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn examine(&self) -> Result<Examined, StoreError> {
        let mut tx = self.pool.begin_with("begin isolation level repeatable read read only").await?;
        Ok(Examined {
            credentials: read_credentials(&mut tx).await?,
            without_credential: sqlx::query_as(WITHOUT_CREDENTIAL).fetch_all(&mut *tx).await?,
            without_price: sqlx::query_as(WITHOUT_PRICE).fetch_all(&mut *tx).await?,
            authorities: sqlx::query_as(AUTHORITIES).fetch_all(&mut *tx).await?,
            database: database(&mut tx).await?,
        })
    }
}

/// Its time is read last, close to when the caller compares it.
async fn database(conn: &mut PgConnection) -> sqlx::Result<Examination> {
    let (version, applied, now) = sqlx::query_as(DATABASE).fetch_one(conn).await?;
    let newest = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0);
    Ok(Examination { version, schema: (applied, newest), now })
}
