//! What is wrong with what was configured, and what to do about it.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Error, Service};
use crate::credentials::{self, Keyring, ResolveError, Source};
use crate::store::{Authority, CredentialRow, Examination, Examined, Lack};
use crate::tls::not_after;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Looked at, and good.
    Ok,
    /// It works, but perhaps not as meant.
    Warning,
    /// Requests fail.
    Error,
}

/// One thing that was looked at.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Finding {
    pub severity: Severity,
    /// `credential main`
    pub about: String,
    pub message: String,
    /// What to do; empty where nothing is.
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
        let Examined { credentials, without_credential, without_price, authorities, database } =
            self.store().examine().await?;
        let now = Utc::now();
        let mut items = vec![version(&database), schema(&database), clock(&database, now)];
        items.extend(authorities.iter().map(|authority| expiry(authority, now)));
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

/// The oldest Postgres that is tested.
const OLDEST_POSTGRES: i32 = 150_000;

fn version(database: &Examination) -> Finding {
    let version = database.version;
    let message = format!("Postgres {}.{}", version / 10_000, version % 10_000);
    if version >= OLDEST_POSTGRES {
        return good("database", message);
    }
    finding(Severity::Error, "database", message, "use Postgres 15 or newer")
}

fn schema(database: &Examination) -> Finding {
    let (applied, newest) = database.schema;
    match applied.cmp(&newest) {
        Ordering::Equal => good("database", format!("has all {newest} migrations")),
        Ordering::Less => finding(
            Severity::Error,
            "database",
            format!("has migration {applied} of {newest}"),
            "start the control plane again; it migrates",
        ),
        Ordering::Greater => finding(
            Severity::Warning,
            "database",
            format!("has migration {applied}, this control plane knows {newest}"),
            "a newer release has migrated it: bring this control plane to that release",
        ),
    }
}

/// Keys expire by the one clock and are made by the other.
const CLOCKS_APART: TimeDelta = TimeDelta::seconds(1);

fn clock(database: &Examination, now: DateTime<Utc>) -> Finding {
    let apart = (now - database.now).num_milliseconds();
    if TimeDelta::milliseconds(apart).abs() <= CLOCKS_APART {
        return good("database", "its clock agrees with the control plane's".to_owned());
    }
    let message = format!("its clock is {apart} ms behind the control plane's");
    finding(Severity::Warning, "database", message, "let NTP set the clocks of both machines")
}

/// Time to get a new one.
const SOON: TimeDelta = TimeDelta::days(14);

/// One certificate of several suffices, so one that has ended is no error while another has not.
fn expiry(authority: &Authority, now: DateTime<Utc>) -> Finding {
    let about = &authority.owner;
    let certificates = CertificateDer::pem_slice_iter(authority.ca.as_bytes());
    let ends = certificates.map(|der| der.ok().and_then(|der| not_after(&der))).collect::<Option<Vec<_>>>();
    let bounds = ends.and_then(|ends| Some((*ends.iter().min()?, *ends.iter().max()?)));
    let Some((first, last)) = bounds else {
        return finding(Severity::Warning, about, "its CA cannot be read".to_owned(), "store it again, as PEM");
    };
    let day = |end: DateTime<Utc>| end.format("%Y-%m-%d %H:%M UTC").to_string();
    let remedy = "store a new one in its `ca`";
    if last <= now {
        finding(Severity::Error, about, format!("its CA has expired at {}", day(last)), remedy)
    } else if first - now < SOON {
        finding(Severity::Warning, about, format!("a certificate of its CA ends at {}", day(first)), remedy)
    } else {
        good(about, format!("its CA is valid until {}", day(first)))
    }
}

fn good(about: &str, message: String) -> Finding {
    finding(Severity::Ok, about, message, "")
}

fn finding(severity: Severity, about: &str, message: String, remedy: &str) -> Finding {
    Finding { severity, about: about.to_owned(), message, remedy: remedy.to_owned() }
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

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// A certificate that ends `days` from 2030-01-01 on, PEM.
    fn ca(days: i64) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.not_after =
            rcgen::date_time_ymd(2030, 1, 1) + std::time::Duration::from_secs(86_400) * u32::try_from(days).unwrap();
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    #[test]
    fn an_authority_is_judged_by_what_is_left_of_it() {
        let now = "2030-01-31T00:00:00Z".parse().unwrap();
        let judged = |ca: String| expiry(&Authority { owner: "provider p".to_owned(), ca }, now).severity;
        assert_eq!(judged(ca(100)), Severity::Ok);
        assert_eq!(judged(ca(40)), Severity::Warning);
        assert_eq!(judged(ca(30)), Severity::Error);
        assert_eq!(judged(ca(1) + &ca(100)), Severity::Warning);
        assert_eq!(judged("none".to_owned()), Severity::Warning);
    }

    #[test]
    fn the_database_is_judged() {
        let now = Utc::now();
        let good = Examination { version: 180_003, schema: (2, 2), now };
        assert_eq!(version(&good).message, "Postgres 18.3");
        assert_eq!([version(&good).severity, schema(&good).severity, clock(&good, now).severity], [Severity::Ok; 3]);
        let off = Examination { version: 140_009, schema: (3, 2), now: now - TimeDelta::seconds(2) };
        assert_eq!(version(&off).severity, Severity::Error);
        assert_eq!(schema(&off).severity, Severity::Warning);
        assert_eq!(schema(&Examination { schema: (1, 2), ..off.clone() }).severity, Severity::Error);
        assert_eq!(clock(&off, now).severity, Severity::Warning);
    }
}
