//! What is wrong with what was configured, and what to do about it.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::{Error, Service};
use crate::credentials::{self, Keyring, ResolveError, Source};
use crate::store::{CredentialRow, Examined, Lack};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It works, but perhaps not as meant.
    Warning,
    /// Requests fail.
    Error,
}

/// One thing that is wrong.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Finding {
    pub severity: Severity,
    /// `credential main`
    pub about: String,
    pub message: String,
    /// What to do.
    pub remedy: String,
}

/// Everything that was found.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Diagnosis {
    pub items: Vec<Finding>,
}

impl Service {
    /// Looks at what is configured as this control plane sees it now; secrets are read, and never shown.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn doctor(&self) -> Result<Diagnosis, Error> {
        let Examined { credentials, without_credential, without_price } = self.store().examine().await?;
        let mut items = Vec::new();
        for row in &credentials {
            if let Err(error) = read(row, self.keyring()).await {
                items.push(unreadable(row, &error));
            }
        }
        let mut models: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for lack in &without_credential {
            models.entry(&lack.provider).or_default().push(&lack.model);
        }
        items.extend(models.iter().map(|(provider, models)| unauthenticated(provider, models)));
        items.extend(without_price.iter().map(unpriced));
        Ok(Diagnosis { items })
    }
}

async fn read(row: &CredentialRow, keyring: &Keyring) -> Result<(), ResolveError> {
    let source: Source = row.source.parse().map_err(|_| ResolveError::Missing)?;
    credentials::resolve(row.id, &source, row.sealed.as_deref(), keyring).await.map(drop)
}

fn unreadable(row: &CredentialRow, error: &ResolveError) -> Finding {
    let remedy = match error {
        ResolveError::NoVariable(name) => format!("set {name} in the control plane's environment and start it again"),
        ResolveError::File { .. } => {
            "put the file there, readable by the control plane; it is tried every second".into()
        }
        ResolveError::Unfit(_) => "let it hold the provider's API key alone, in one line".into(),
        ResolveError::Keyring(_) => {
            "start the control plane with the keyring it was sealed under, or store it again".into()
        }
        ResolveError::Missing => "store it again".into(),
    };
    Finding {
        severity: Severity::Error,
        about: format!("credential {}", row.name),
        message: format!("cannot be read ({}): {error}", row.source),
        remedy,
    }
}

fn unauthenticated(provider: &str, models: &[&str]) -> Finding {
    Finding {
        severity: Severity::Warning,
        about: format!("provider {provider}"),
        message: format!("no credential, but used by {}: requests go out without an API key", models.join(", ")),
        remedy: "add a credential, unless it wants none".to_owned(),
    }
}

fn unpriced(lack: &Lack) -> Finding {
    let Lack { model, provider, provider_model } = lack;
    Finding {
        severity: Severity::Warning,
        about: format!("model {model}"),
        message: format!("{provider}/{provider_model} is unpriced: cost will be unknown"),
        remedy: format!("add a price for provider {provider}, model {provider_model}"),
    }
}
