//! Whose tokens (JWT) are taken instead of keys, and what they make of their holders.

mod claim;
mod rows;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::PgConnection;
use utoipa::ToSchema;

use super::super::{Endpoint, EndpointError, Fault, Write, WriteError};
use super::provider::check_ca;
use super::{NoFacts, Noun, Stored, Which, check_length, check_name, check_token};

pub use claim::ClaimPath;

/// An issuer of tokens. Envoys verify them with its keys; a token's holder becomes a user when first seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Issuer {
    pub name: String,
    /// The `iss` claim of its tokens, to the letter.
    pub issuer: String,
    /// A token is taken if it is meant for one of these (its `aud` claim).
    pub audiences: Vec<String>,
    /// Where its keys are fetched (a JWK set); or `jwks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwks_uri: Option<String>,
    /// Its keys themselves: a JWK set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub jwks: Option<Value>,
    /// PEM of the authority behind `jwks_uri`; absent: the public roots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Loopback, link-local and metadata addresses are refused for `jwks_uri` otherwise.
    #[serde(default)]
    pub allow_private: bool,
    /// The org all its users are in; or `org_by`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub org_by: Option<OrgBy>,
    /// What its users are called. Absent: by the subject (`sub`). Wants to be a claim that the issuer verifies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_claim: Option<ClaimPath>,
    /// Names the user's team, which must exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team_claim: Option<ClaimPath>,
    /// A token that lacks one of these is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<Required>,
    /// Names of the models that everybody may use. Absent: any, but with `roles` only what those grant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roles: Option<Roles>,
}

/// Which value of a claim means which org.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OrgBy {
    pub claim: ClaimPath,
    /// Names of orgs by value. A token with another value is refused.
    pub orgs: BTreeMap<String, String>,
}

/// A claim that must have one of these values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Required {
    pub claim: ClaimPath,
    pub values: Vec<String>,
}

/// What roles add to what everybody may. Who has none of them, where there is no `models`, is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Roles {
    pub claim: ClaimPath,
    pub grants: Vec<Grant>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// Of the claim.
    pub role: String,
    /// Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<String>>,
}

const MAX_LIST: usize = 100;
const MAX_VALUE_BYTES: usize = 255;
const MAX_JWKS_BYTES: usize = 64 << 10;
/// Where anyone can have an account: a token of theirs says nothing by itself.
const ANYBODYS: &[&str] = &[
    "https://accounts.google.com",
    "https://token.actions.githubusercontent.com",
    "https://gitlab.com",
    "https://login.microsoftonline.com/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0",
    "https://appleid.apple.com",
];

impl Issuer {
    /// Where `jwks_uri` leads.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn endpoint(&self) -> Option<Result<Endpoint, EndpointError>> {
        self.jwks_uri.as_deref().map(|uri| Endpoint::parse(uri, self.allow_private))
    }

    /// What tells its identities apart besides the subject, each with the values that mean something (none: any). Filter and
    /// control plane keep to this order.
    pub fn claims(&self) -> Vec<(&ClaimPath, Vec<String>)> {
        let org = self.org_by.iter().map(|by| (&by.claim, by.orgs.keys().cloned().collect()));
        let names = self.user_claim.iter().chain(&self.team_claim).map(|claim| (claim, Vec::new()));
        let required = self.require.iter().map(|required| (&required.claim, required.values.clone()));
        let role = |grant: &Grant| grant.role.clone();
        let roles = self.roles.iter().map(|roles| (&roles.claim, roles.grants.iter().map(role).collect()));
        org.chain(names).chain(required).chain(roles).collect()
    }

    /// Every model it names, and where.
    pub(in crate::store) fn model_names(&self) -> impl Iterator<Item = (String, &String)> {
        let everybodys = self.models.iter().flatten().enumerate().map(|(j, model)| (format!("models[{j}]"), model));
        let grants = self.roles.iter().flat_map(|roles| &roles.grants).enumerate();
        let granted = grants.flat_map(|(i, grant)| {
            let models = grant.models.iter().flatten().enumerate();
            models.map(move |(j, model)| (format!("roles.grants[{i}].models[{j}]"), model))
        });
        everybodys.chain(granted)
    }

    fn check_keys(&self) -> Result<(), Fault> {
        match (&self.jwks_uri, &self.jwks) {
            (Some(_), None) => {
                if let Some(Err(e)) = self.endpoint() {
                    return Err(Fault::new("jwks_uri", e.to_string()));
                }
                self.ca.as_deref().map_or(Ok(()), check_ca)
            }
            (None, Some(jwks)) => {
                if jwks.get("keys").and_then(Value::as_array).is_none_or(Vec::is_empty) {
                    return Err(Fault::new("jwks", "is no JWK set: it wants {\"keys\": [..]} with at least one key"));
                }
                let private = |key: &Value| ["d", "p", "q", "k"].iter().any(|part| key.get(part).is_some());
                if jwks.get("keys").and_then(Value::as_array).is_some_and(|keys| keys.iter().any(private)) {
                    return Err(Fault::new("jwks", "holds a private or shared key; only public ones belong here"));
                }
                check_length("jwks", &jwks.to_string(), MAX_JWKS_BYTES)
            }
            (Some(_), Some(_)) => Err(Fault::new("jwks", "stands beside jwks_uri; one of the two")),
            (None, None) => Err(Fault::new("jwks_uri", "is missing: where are the issuer's keys? (or jwks)")),
        }
    }

    fn check_owners(&self) -> Result<(), Fault> {
        match (&self.org, &self.org_by) {
            (Some(_), Some(_)) => return Err(Fault::new("org_by", "stands beside org; one of the two")),
            (None, None) => return Err(Fault::new("org", "is missing: where do its users belong? (or org_by)")),
            (None, Some(by)) => {
                by.claim.check("org_by.claim")?;
                check_values("org_by.orgs", by.orgs.keys())?;
            }
            (Some(_), None) => {}
        }
        if let Some(claim) = &self.user_claim {
            claim.check("user_claim")?;
        }
        if let Some(claim) = &self.team_claim {
            claim.check("team_claim")?;
        }
        Ok(())
    }

    fn check_rights(&self) -> Result<(), Fault> {
        if self.require.len() > 8 {
            return Err(Fault::new("require", "are more than 8"));
        }
        for (i, required) in self.require.iter().enumerate() {
            required.claim.check(&format!("require[{i}].claim"))?;
            check_values(&format!("require[{i}].values"), &required.values)?;
        }
        if self.require.is_empty() && self.org_by.is_none() && ANYBODYS.contains(&self.issuer.trim_end_matches('/')) {
            let message = "anybody can have an account there: say with `require` whose tokens are meant";
            return Err(Fault::new("require", message));
        }
        let check_models = |field: &str, models: &Option<Vec<String>>| {
            let models = models.as_deref().unwrap_or_default();
            match models.len() > 1000 {
                true => Err(Fault::new(field, "are more than 1000")),
                false => Ok(()),
            }
        };
        check_models("models", &self.models)?;
        let Some(roles) = &self.roles else { return Ok(()) };
        roles.claim.check("roles.claim")?;
        check_values("roles.grants", roles.grants.iter().map(|grant| &grant.role))?;
        roles
            .grants
            .iter()
            .enumerate()
            .try_for_each(|(i, g)| check_models(&format!("roles.grants[{i}].models"), &g.models))
    }
}

/// At least one, each once, none too long.
fn check_values<'a>(field: &str, values: impl IntoIterator<Item = &'a String>) -> Result<(), Fault> {
    let mut seen = BTreeSet::new();
    for value in values {
        if value.is_empty() || value.len() > MAX_VALUE_BYTES || value.chars().any(char::is_control) {
            return Err(Fault::new(field, format!("{value:?} is empty, too long or holds control characters")));
        }
        if !seen.insert(value) {
            return Err(Fault::new(field, format!("{value:?} stands there twice")));
        }
    }
    match seen.len() {
        0 => Err(Fault::new(field, "must not be empty")),
        n if n > MAX_LIST => Err(Fault::new(field, format!("are more than {MAX_LIST}"))),
        _ => Ok(()),
    }
}

impl Noun for Issuer {
    const KIND: &'static str = "issuer";
    const HOLD: &'static str = "select from issuer where id = $1 for no key update";
    type Facts = NoFacts;

    fn handle(&self) -> String {
        self.name.clone()
    }

    fn check(&self) -> Result<(), Fault> {
        check_name("name", &self.name, false)?;
        check_token("issuer", &self.issuer, true)?;
        if self.audiences.is_empty() {
            let message = "must not be empty: tokens that the issuer made for others would be taken too";
            return Err(Fault::new("audiences", message));
        }
        check_values("audiences", &self.audiences)?;
        self.check_keys()?;
        self.check_owners()?;
        self.check_rights()
    }

    async fn find(conn: &mut PgConnection, handle: &str) -> Result<Option<i32>, WriteError> {
        Ok(sqlx::query_scalar("select id from issuer where name = $1").bind(handle).fetch_optional(conn).await?)
    }

    async fn load(conn: &mut PgConnection, which: Which) -> sqlx::Result<Vec<Stored<Self>>> {
        rows::load(conn, which).await
    }

    async fn insert(&self, write: &mut Write) -> Result<i32, WriteError> {
        write.policy_changed();
        let references = rows::References::find(write.conn(), self).await?;
        rows::insert(write.conn(), self, &references).await
    }

    /// What was derived from the old rules goes: its holders are asked for again.
    async fn update(&self, write: &mut Write, id: i32, _old: &Self) -> Result<(), WriteError> {
        write.policy_changed();
        forget_identities(write, id).await?;
        let references = rows::References::find(write.conn(), self).await?;
        rows::update(write.conn(), id, self, &references).await
    }

    /// Its users stay, as usage was booked on them; their tokens are refused.
    async fn remove(&self, write: &mut Write, id: i32) -> Result<(), WriteError> {
        write.policy_changed();
        forget_identities(write, id).await?;
        sqlx::query("delete from issuer where id = $1").bind(id).execute(write.conn()).await?;
        Ok(())
    }
}

async fn forget_identities(write: &mut Write, id: i32) -> Result<(), WriteError> {
    let gone: Vec<Vec<u8>> = sqlx::query_scalar("delete from identity where issuer_id = $1 returning hash")
        .bind(id)
        .fetch_all(write.conn())
        .await?;
    write.keys_changed(gone.iter().map(|hash| super::key::prefix(hash)));
    Ok(())
}
