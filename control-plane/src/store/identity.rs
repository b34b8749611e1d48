//! Who the holder of a token is: found, or made on first use.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use serde_json::json;
use sluicegate_core::exchange::token::{Presented, Presents};
use sqlx::PgConnection;

use super::noun::{self, ClaimPath, Issuer, User, check_name};
use super::{Action, Fault, Store, Write, WriteError, profile};
use crate::credentials::Keyring;

/// What the holder of a token reads whose org the Envoy's group does not serve.
pub const ELSEWHERE: &str = "its organization is not served here";

/// What became of a question who somebody is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// There is a record of it as of this revision.
    Known { revision: u64 },
    /// The issuer's rules say no; why, for a person.
    Refused(String),
    /// The question was asked by other rules than are in force: they change at this moment.
    OtherRules,
}

/// What an issuer's rules make of a token.
struct Claimed<'a> {
    org: &'a str,
    user: String,
    team: Option<&'a str>,
    /// Names; `None`: any.
    models: Option<Vec<&'a str>>,
}

impl Store {
    /// Finds the identity, or makes it, with its user where there is none yet and it is in one of `orgs` (`None`: in any).
    ///
    /// # Errors
    /// When the database is away or busy. Asking again is harmless.
    pub async fn resolve(
        &self,
        keyring: &Arc<Keyring>,
        who: &Presented,
        orgs: Option<&BTreeSet<u32>>,
    ) -> Result<Resolution, WriteError> {
        let known: Option<i64> = sqlx::query_scalar(
            "select revision from revision where one and exists (select from identity where hash = $1)",
        )
        .bind(who.hash.0.as_slice())
        .fetch_optional(&self.pool)
        .await?;
        if let Some(revision) = known {
            return Ok(Resolution::Known { revision: revision.cast_unsigned() });
        }
        let name: Option<String> = sqlx::query_scalar("select name from issuer where id = $1")
            .bind(who.issuer.cast_signed())
            .fetch_optional(&self.pool)
            .await?;
        let Some(name) = name else { return Ok(Resolution::OtherRules) };
        let mut write = self.begin(&format!("issuer:{name}"), keyring).await?;
        match write.make_identity(who, orgs).await {
            Ok(true) => Ok(Resolution::Known { revision: write.commit().await?.cast_unsigned() }),
            Ok(false) => Ok(Resolution::OtherRules),
            Err(WriteError::Invalid(fault)) => Ok(Resolution::Refused(fault.message)),
            Err(other) => Err(other),
        }
    }

    /// Those of more than 30 days ago; their users stay. Returns how many.
    pub(super) async fn forget_old_identities(&self, keyring: &Arc<Keyring>) -> Result<u64, WriteError> {
        let mut forgotten = 0;
        loop {
            let mut write = self.begin("maintenance", keyring).await?;
            let gone: Vec<Vec<u8>> = sqlx::query_scalar(
                "delete from identity where hash in (
                     select hash from identity where created_at < now() - interval '30 days' limit 10000)
                 returning hash",
            )
            .fetch_all(write.conn())
            .await?;
            if gone.is_empty() {
                return Ok(forgotten);
            }
            write.keys_changed(gone.iter().map(|hash| noun::prefix(hash)));
            write.audit(Action::Delete, "identity", "*", json!({ "older_than_days": 30, "count": gone.len() }));
            write.commit().await?;
            forgotten += gone.len() as u64;
        }
    }
}

impl Write {
    /// `false` where the question does not fit the rules.
    async fn make_identity(&mut self, who: &Presented, orgs: Option<&BTreeSet<u32>>) -> Result<bool, WriteError> {
        let id = who.issuer.cast_signed();
        // The rules stay as they are until this identity is there: a change of them forgets it.
        sqlx::query("select from issuer where id = $1 for share").bind(id).execute(self.conn()).await?;
        let Ok(issuer) = noun::fetch::<Issuer>(self.conn(), &id.to_string()).await else { return Ok(false) };
        let issuer = issuer.noun;
        if !asked_by(&issuer, &who.claims) {
            return Ok(false);
        }
        let claimed = claimed(&issuer, who)?;
        let org = noun::org_of(self.conn(), claimed.org).await?;
        if orgs.is_some_and(|orgs| !orgs.contains(&org.cast_unsigned())) {
            return Err(Fault::new("org", ELSEWHERE).into());
        }
        let user = self.user_of(id, who, org, &claimed).await?;
        let models = match &claimed.models {
            None => None,
            Some(names) => {
                let ids: Vec<i32> = sqlx::query_scalar("select id from model where name = any($1)")
                    .bind(names)
                    .fetch_all(self.conn())
                    .await?;
                Some(ids)
            }
        };
        let profile = profile::intern(self.conn(), &profile::encode(models.as_deref(), &[] as &[IpNet])).await?;
        sqlx::query(
            "insert into identity (hash, issuer_id, subject, user_id, profile_id) values ($1, $2, $3, $4, $5)
             on conflict (hash) do nothing",
        )
        .bind(who.hash.0.as_slice())
        .bind(id)
        .bind(&who.subject)
        .bind(user)
        .bind(profile)
        .execute(self.conn())
        .await?;
        self.keys_changed([noun::prefix(&who.hash.0)]);
        let detail = json!({ "issuer": issuer.name, "subject": who.subject });
        self.audit(Action::Create, "identity", format!("{}/{}", claimed.org, claimed.user), detail);
        Ok(true)
    }

    /// The user that this subject is, the one of that name, or a new one; in the team that the token names.
    async fn user_of(
        &mut self,
        issuer: i32,
        who: &Presented,
        org: i32,
        claimed: &Claimed<'_>,
    ) -> Result<i32, WriteError> {
        let team = claimed.team.map(str::to_owned);
        let declared = User { org: claimed.org.to_owned(), team: team.clone(), name: claimed.user.clone() };
        // Two Envoys may ask of the same subject at once; the second finds what the first has made.
        sqlx::query("select pg_advisory_xact_lock(hashtextextended($1, $2))")
            .bind(&who.subject)
            .bind(i64::from(issuer))
            .execute(self.conn())
            .await?;
        let known = find_user(self.conn(), issuer, &who.subject, org, &declared.name).await?;
        let user = match known {
            None => noun::create(self, &declared).await.map_err(team_is_missing)?,
            Some(id) if claimed.team.is_some() => {
                let old = noun::hold::<User>(self, id).await?;
                let new = User { team, ..old.noun.clone() };
                noun::change(self, &old, &new).await.map_err(team_is_missing)?;
                id
            }
            Some(id) => id,
        };
        sqlx::query(
            "insert into issuer_subject (issuer_id, subject, org_id, user_id) values ($1, $2, $3, $4)
             on conflict do nothing",
        )
        .bind(issuer)
        .bind(&who.subject)
        .bind(org)
        .bind(user)
        .execute(self.conn())
        .await?;
        Ok(user)
    }
}

async fn find_user(
    conn: &mut PgConnection,
    issuer: i32,
    subject: &str,
    org: i32,
    name: &str,
) -> Result<Option<i32>, WriteError> {
    Ok(sqlx::query_scalar(
        "select user_id from (
             select user_id, 0 as rank from issuer_subject where issuer_id = $1 and subject = $2 and org_id = $3
             union all select id, 1 from app_user where org_id = $3 and name = $4) found
         order by rank limit 1",
    )
    .bind(issuer)
    .bind(subject)
    .bind(org)
    .bind(name)
    .fetch_optional(conn)
    .await?)
}

/// The team's fault as the holder of the token is to read it.
fn team_is_missing(error: WriteError) -> WriteError {
    match error {
        WriteError::Invalid(fault) if fault.field == "team" => {
            Fault::new("team", "its team does not exist in this organization").into()
        }
        other => other,
    }
}

/// Whether the question has the claims that the rules speak of now.
fn asked_by(issuer: &Issuer, claims: &[Presents]) -> bool {
    let expected = issuer.claims();
    let fits = |(claim, values): &(&ClaimPath, Vec<String>), asked: &Presents| {
        claim.0 == asked.path && (values.is_empty() || asked.values.iter().all(|value| values.contains(value)))
    };
    expected.len() == claims.len() && expected.iter().zip(claims).all(|(expected, asked)| fits(expected, asked))
}

/// Reads a token by the rules; the claims come in their order.
fn claimed<'a>(issuer: &'a Issuer, who: &'a Presented) -> Result<Claimed<'a>, Fault> {
    let mut claims = who.claims.iter();
    let mut next = |_: &ClaimPath| claims.next().map(|claim| claim.values.as_slice()).unwrap_or_default();
    let org = match &issuer.org_by {
        None => issuer.org.as_deref().unwrap_or_default(),
        Some(by) => match next(&by.claim) {
            [value] => by.orgs.get(value).map(String::as_str).unwrap_or_default(),
            [] => return Err(Fault::new("org", "it names no organization that is known here")),
            _ => return Err(Fault::new("org", "it names several organizations")),
        },
    };
    let user = match &issuer.user_claim {
        None => who.subject.as_str(),
        Some(claim) => match next(claim) {
            [name] => name,
            _ => return Err(Fault::new("user", format!("its claim `{claim}` does not name one user"))),
        },
    };
    let team = match &issuer.team_claim {
        None => None,
        Some(claim) => match next(claim) {
            [] => None,
            [team] => Some(team.as_str()),
            _ => return Err(Fault::new("team", format!("its claim `{claim}` names several teams"))),
        },
    };
    for required in &issuer.require {
        if next(&required.claim).is_empty() {
            let message = format!("its claim `{}` is missing or not one that is let in", required.claim);
            return Err(Fault::new("require", message));
        }
    }
    let everybodys = issuer.models.as_ref().map(|models| models.iter().map(String::as_str).collect());
    let models = match &issuer.roles {
        None => everybodys,
        Some(roles) => granted(everybodys, next(&roles.claim), roles)?,
    };
    Ok(Claimed { org, user: user_name(&issuer.name, user)?, team, models })
}

fn granted<'a>(
    everybodys: Option<Vec<&'a str>>,
    has: &[String],
    roles: &'a noun::Roles,
) -> Result<Option<Vec<&'a str>>, Fault> {
    let grants: Vec<_> = roles.grants.iter().filter(|grant| has.contains(&grant.role)).collect();
    if grants.is_empty() && everybodys.is_none() {
        return Err(Fault::new("roles", format!("its claim `{}` has no role that is let in", roles.claim)));
    }
    if grants.iter().any(|grant| grant.models.is_none()) {
        return Ok(None);
    }
    let granted = grants.iter().flat_map(|grant| grant.models.iter().flatten()).map(String::as_str);
    Ok(Some(everybodys.unwrap_or_default().into_iter().chain(granted).collect()))
}

/// A subject can be what no name may: a number, which would be taken for an id, or hold a slash. Different ones stay different.
fn user_name(issuer: &str, claimed: &str) -> Result<String, Fault> {
    let name = claimed.replace('%', "%25").replace('/', "%2F");
    let name = if name.bytes().all(|b| b.is_ascii_digit()) { format!("{issuer}:{name}") } else { name };
    check_name("user", &name, false)
        .map(|()| name)
        .map_err(|fault| Fault::new("user", format!("what it calls its user {}", fault.message)))
}

#[cfg(test)]
mod tests {
    use super::super::noun::Noun as _;
    use super::*;

    fn issuer(more: serde_json::Value) -> Issuer {
        let mut all = json!({
            "name": "idp", "issuer": "https://id.example", "audiences": ["gw"], "jwks_uri": "https://id.example/jwks",
        });
        if let (Some(all), serde_json::Value::Object(more)) = (all.as_object_mut(), more) {
            all.extend(more);
        }
        let issuer: Issuer = noun::parse(all).unwrap();
        issuer.check().unwrap();
        issuer
    }

    fn who(issuer: &Issuer, values: &[&[&str]]) -> Presented {
        let claims = issuer.claims().into_iter().zip(values).map(|((claim, _), values)| Presents {
            path: claim.0.clone(),
            values: values.iter().map(|v| (*v).to_owned()).collect(),
        });
        Presented::new(1, "s-1".to_owned(), claims.collect())
    }

    fn outcome(issuer: &Issuer, values: &[&[&str]]) -> Result<(String, String, Option<Vec<String>>), String> {
        let who = who(issuer, values);
        assert!(asked_by(issuer, &who.claims));
        let claimed = claimed(issuer, &who).map_err(|fault| fault.field)?;
        let models = claimed.models.map(|models| models.into_iter().map(str::to_owned).collect());
        Ok((claimed.org.to_owned(), claimed.user, models))
    }

    #[test]
    fn rules_make_an_owner_of_a_token() {
        let plain = issuer(json!({ "org": "acme" }));
        assert_eq!(outcome(&plain, &[]), Ok(("acme".into(), "s-1".into(), None)));
        let all = issuer(json!({
            "org_by": { "claim": "tenant", "orgs": { "t1": "acme" } }, "user_claim": "email",
            "require": [{ "claim": "hd", "values": ["acme.com"] }], "models": ["m0"],
            "roles": { "claim": ["realm", "roles"], "grants": [{ "role": "ml", "models": ["m1"] }, { "role": "admin" }] },
        }));
        let models = |roles| outcome(&all, &[&["t1"], &["a@x"], &["acme.com"], roles]).unwrap().2;
        assert_eq!(models(&[]), Some(vec!["m0".to_owned()]));
        assert_eq!(models(&["ml"]), Some(vec!["m0".to_owned(), "m1".to_owned()]));
        assert_eq!(models(&["admin", "ml"]), None, "any");
        assert_eq!(outcome(&all, &[&[], &["a@x"], &["acme.com"], &[]]), Err("org".into()));
        assert_eq!(outcome(&all, &[&["t1"], &[], &["acme.com"], &[]]), Err("user".into()));
        assert_eq!(outcome(&all, &[&["t1"], &["a@x"], &[], &[]]), Err("require".into()));
        let only_roles = issuer(json!({ "org": "acme", "roles": { "claim": "groups", "grants": [{ "role": "ml" }] } }));
        assert_eq!(outcome(&only_roles, &[&[]]), Err("roles".into()));
    }

    #[test]
    fn a_question_by_other_rules_is_seen() {
        let issuer = issuer(json!({ "org": "acme", "user_claim": "email" }));
        assert!(!asked_by(&issuer, &[]));
        let other = Presents { path: vec!["name".to_owned()], values: vec![] };
        assert!(!asked_by(&issuer, &[other]));
    }

    #[test]
    fn names_of_users_stay_apart() {
        let name = |claimed| user_name("idp", claimed);
        assert_eq!(name("1234").unwrap(), "idp:1234");
        assert_eq!(name("repo:a/b").unwrap(), "repo:a%2Fb");
        assert_eq!(name("repo:a%2Fb").unwrap(), "repo:a%252Fb");
        assert!(name(&"x".repeat(200)).unwrap_err().message.contains("128"));
    }
}
