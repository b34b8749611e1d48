//! Postgres: the only module that knows SQL. Every write is one transaction (see `migrations/`).

mod apply;
mod block;
mod endpoint;
mod fault;
mod node_token;
pub mod noun;
mod policy;
mod profile;
mod read;
mod seed;
mod tx;

use std::time::Duration;

use sqlx::postgres::{PgPool, PgPoolOptions};

pub use apply::{Change, ChangeKind, Document, Version};
pub use block::Blockable;
pub use endpoint::{Endpoint, EndpointError};
pub use fault::{Fault, WriteError};
pub use node_token::{IssuedToken, NewNodeToken, Node, NodeToken};
pub(crate) use noun::credential_context;
pub use policy::{Cluster, ProviderEndpoint};
pub use profile::PROFILE_SLOTS;
pub use read::{AuditEntry, EnvoyRow, SummaryBy, SummaryRow, UsageFilter, UsageRow};
pub use seed::Seeds;
pub use tx::{Action, Issued, Write};

/// A pool of connections to a migrated database.
#[derive(Clone, Debug)]
pub struct Store {
    pool: PgPool,
}

/// What can go wrong with the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
    #[error("migration: {0}")]
    Migrate(#[from] sqlx::migrate::MigrateError),
}

impl Store {
    /// Connects and migrates; several replicas may do so at once (sqlx takes an advisory lock).
    ///
    /// # Errors
    /// When the database does not answer within 30 s, or its schema is newer than this build.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let pool =
            PgPoolOptions::new().max_connections(16).acquire_timeout(Duration::from_secs(30)).connect(url).await?;
        sqlx::migrate!().run(&pool).await?;
        Ok(Self { pool })
    }
}
