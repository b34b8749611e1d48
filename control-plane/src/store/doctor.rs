//! What is in the store but cannot work, or not as somebody would expect.

use super::feed::read_credentials;
use super::{CredentialRow, Store, StoreError};

/// A target of a model, and what it lacks.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct Lack {
    pub model: String,
    pub provider: String,
    /// The provider's name for the model.
    pub provider_model: String,
}

/// What [`Store::examine`] found.
#[derive(Debug)]
pub struct Examined {
    /// All of them; whether they can be read only the control plane's environment tells.
    pub credentials: Vec<CredentialRow>,
    /// Targets at providers that have no credential at all.
    pub without_credential: Vec<Lack>,
    pub without_price: Vec<Lack>,
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
        })
    }
}
