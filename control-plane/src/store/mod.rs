//! Postgres: the only module that knows SQL. Every write is one transaction (see `migrations/`).

mod admin_token;
mod apply;
mod block;
mod doctor;
mod document;
mod endpoint;
mod era;
mod fault;
mod feed;
mod identity;
mod ledger;
mod maintenance;
mod node_token;
pub mod noun;
pub mod number;
mod policy;
mod profile;
mod read;
mod roster;
mod scope;
mod seed;
mod slot;
mod time;
mod tx;
mod yaml;

use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions as _, Connection as _};

pub use admin_token::{AdminToken, NewAdminToken};
pub use apply::{Change, ChangeKind};
pub use block::Blockable;
pub use doctor::{Authority, Examination, Examined, Lack};
pub use document::{Document, Version};
pub use endpoint::{Endpoint, EndpointError};
pub use era::{Era, RaiseError};
pub use fault::{Fault, WriteError};
pub use feed::{
    CHANNEL, Clock, Commits, CredentialRow, FeedReader, KeyChange, KeyReading, KeyRow, Parts, PolicyRow, ProfileRow,
    Reading,
};
pub use identity::{ELSEWHERE, Resolution};
pub use ledger::{Inserted, LedgerRow, Reconciled, Recorded, Rejection, Witness};
pub use maintenance::Swept;
pub use node_token::{IssuedToken, NewNodeToken, Node, NodeToken};
pub use noun::CREDENTIAL_SLOTS;
pub(crate) use noun::credential_context;
pub use policy::{Cluster, ProviderEndpoint, Reachable, TokenIssuer, TokenKeys};
pub use profile::PROFILE_SLOTS;
pub use read::{AuditEntry, EnvoyRow, SummaryBy, SummaryRow, UsageFilter, UsageRow};
pub use roster::{EnvoyReport, Verdict};
pub use scope::Scope;
pub use seed::Seeds;
pub use tx::{Action, Issued, Write};

/// Those of this build; the binary holds them.
static MIGRATIONS: Migrator = sqlx::migrate!();

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
    #[error("the store is damaged: {0}")]
    Damaged(&'static str),
}

impl Store {
    /// Connects and migrates; several replicas may do so at once (sqlx takes an advisory lock).
    /// Every connection of the pool checks the era before its first use ([`Era`]).
    ///
    /// # Errors
    /// When the database does not answer within 30 s, or its schema is newer than this build.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let options: PgConnectOptions = url.parse()?;
        let mut first = options.connect().await?;
        MIGRATIONS.run(&mut first).await?;
        first.close().await?;
        let pool = PgPoolOptions::new()
            .max_connections(16)
            .acquire_timeout(Duration::from_secs(30))
            .after_connect(|connection, _| {
                Box::pin(async move {
                    // On a guess of the planner a query of a millisecond is compiled for twenty: a key's change waits for it.
                    sqlx::query("set jit = off").execute(&mut *connection).await?;
                    era::check(connection).await.map(drop)
                })
            })
            .connect_with(options)
            .await?;
        Ok(Self { pool })
    }
}
