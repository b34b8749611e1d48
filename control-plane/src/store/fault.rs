//! Why a write is refused.

use sqlx::error::{DatabaseError, ErrorKind};

use super::StoreError;

/// A value that cannot be, and where it stands: a path into what was asked for, such as `targets[0].provider`.
/// An empty path means the whole of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Fault {
    pub field: String,
    pub message: String,
}

impl Fault {
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    /// The same fault, seen from where `outer` holds what it is about.
    #[must_use]
    pub fn under(mut self, outer: &str) -> Self {
        self.field = match self.field.as_str() {
            "" => outer.to_owned(),
            field => format!("{outer}.{field}"),
        };
        self
    }
}

/// Everything a write can end in besides success. Nothing of it is in the database then.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("no {kind} is named {name:?}")]
    NotFound { kind: &'static str, name: String },
    /// It exists already, or is in use.
    #[error("{message}")]
    Conflict { field: String, message: String },
    #[error(transparent)]
    Invalid(#[from] Fault),
    /// The keyring cannot seal or open.
    #[error("keyring: {0}")]
    Keyring(#[from] crate::credentials::KeyringError),
    /// Two writes waited for each other and the other one went first, or the database restarts.
    #[error("the database was busy with something else; try again")]
    Busy,
    /// The database does not answer.
    #[error("the database is away: {0}")]
    Away(#[source] sqlx::Error),
    #[error("database: {0}")]
    Database(#[source] sqlx::Error),
    #[error(transparent)]
    Store(StoreError),
}

impl WriteError {
    /// The same error, seen from where `outer` holds what it is about.
    #[must_use]
    pub fn under(self, outer: &str) -> Self {
        match self {
            Self::Invalid(fault) => Self::Invalid(fault.under(outer)),
            Self::Conflict { field, message } => {
                let fault = Fault::new(field, message).under(outer);
                Self::Conflict { field: fault.field, message: fault.message }
            }
            Self::NotFound { kind, name } => Self::Invalid(Fault::new(outer, format!("no {kind} is named {name:?}"))),
            other => other,
        }
    }
}

impl From<StoreError> for WriteError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Database(error) => error.into(),
            other => Self::Store(other),
        }
    }
}

impl From<sqlx::Error> for WriteError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(refused) => match what_was_done(refused.as_ref()) {
                Some(done) => done,
                None => Self::Database(error),
            },
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => {
                Self::Away(error)
            }
            _ => Self::Database(error),
        }
    }
}

/// What the caller did, from what Postgres refused.
fn what_was_done(error: &dyn DatabaseError) -> Option<WriteError> {
    match (error.kind(), error.code().as_deref()) {
        (ErrorKind::UniqueViolation, _) => {
            let (field, message) = taken(error.constraint()?)?;
            Some(WriteError::Conflict { field: field.to_owned(), message: message.to_owned() })
        }
        // Postgres 18 tells `on delete restrict` (restrict_violation) from other broken references.
        (ErrorKind::ForeignKeyViolation, _) | (_, Some("23001")) => {
            let user = error.table().unwrap_or_default().replace('_', " ");
            Some(WriteError::Conflict { field: String::new(), message: format!("it is in use, or gone ({user})") })
        }
        // deadlock_detected, serialization_failure, and a server that goes or comes.
        (_, Some("40P01" | "40001" | "57P01" | "57P02" | "57P03")) => Some(WriteError::Busy),
        _ => None,
    }
}

fn taken(constraint: &str) -> Option<(&'static str, &'static str)> {
    match constraint {
        "api_key_hash_key" | "api_key_public_id_key" => Some(("hash", "this key exists already")),
        "price_provider_id_model_key" => Some(("model", "this model of this provider has a price already")),
        other if other.ends_with("_name_key") => Some(("name", "this name is taken")),
        _ => None,
    }
}
