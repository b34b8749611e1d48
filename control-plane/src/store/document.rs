//! The declarative file: its form, and every check that needs no store.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::noun::{self, Credential, Group, Issuer, Key, Model, Noun, Org, Price, Provider, Team, User};
use super::{Fault, yaml};

/// A declarative file. A section that is absent is left alone; one that is there is compared with the store.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    pub version: Version,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<Group>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub providers: Option<Vec<Provider>>,
    /// By reference only, `env:` or `file:`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Vec<Credential>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<Model>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices: Option<Vec<Price>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orgs: Option<Vec<Org>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teams: Option<Vec<Team>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<User>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuers: Option<Vec<Issuer>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<Key>>,
}

/// Of the file's format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    #[default]
    V1,
}

/// Applies the given action to each section, in the order in which they refer to each other.
macro_rules! sections {
    ($each:ident) => {
        $each!(providers, credentials, models, prices, orgs, teams, users, issuers, keys, groups)
    };
}
pub(super) use sections;

/// A message that tells its path itself, or that of what encloses it, would tell it twice.
fn without_path<'a>(path: &str, message: &'a str) -> &'a str {
    let encloses = |told: &str| {
        let rest = path.strip_prefix(told).filter(|_| !told.is_empty());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    match message.split_once(": ") {
        Some((told, rest)) if encloses(told) => rest,
        _ => message,
    }
}

impl Document {
    /// Reads a file, YAML or JSON (which is YAML).
    ///
    /// # Errors
    /// The first fault of form: no YAML, an unknown, missing or ill-typed field.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        if text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#')) {
            return Err(Fault::new("", "is empty; a file begins with `version: v1`"));
        }
        yaml::check(text).map_err(|message| Fault::new("", message))?;
        serde_path_to_error::deserialize(serde_norway::Deserializer::from_str(text)).map_err(|e| {
            let path = noun::path_of(e.path());
            let message = without_path(&path, &e.inner().to_string()).to_owned();
            Fault { field: path, message }
        })
    }

    /// Every check that needs no store.
    ///
    /// # Errors
    /// The first fault, with its path: `models[2].targets[0].weight`.
    pub fn check(&self) -> Result<(), Fault> {
        macro_rules! check {
            ($($section:ident),*) => { $( check_section(stringify!($section), self.$section.as_deref())?; )* };
        }
        sections!(check);
        for (i, credential) in self.credentials.iter().flatten().enumerate() {
            if credential.secret.is_some() {
                let message = "does not belong into a file; write source: env:<NAME> or file:<path>";
                return Err(Fault::new(format!("credentials[{i}].secret"), message));
            }
        }
        Ok(())
    }

    /// Checks that every name the file refers to is declared in it too. What a store may hold besides is not considered.
    ///
    /// # Errors
    /// The first name that is not, with its path.
    pub fn check_references(&self) -> Result<(), Fault> {
        let providers = names(self.providers.as_deref());
        let credentials: BTreeMap<&str, &str> =
            self.credentials.iter().flatten().map(|c| (c.name.as_str(), c.provider.as_str())).collect();
        for (i, credential) in self.credentials.iter().flatten().enumerate() {
            declared(&providers, "provider", &credential.provider, || format!("credentials[{i}].provider"))?;
        }
        for (i, price) in self.prices.iter().flatten().enumerate() {
            declared(&providers, "provider", &price.provider, || format!("prices[{i}].provider"))?;
        }
        for (i, model) in self.models.iter().flatten().enumerate() {
            for (j, target) in model.targets.iter().enumerate() {
                let field = |name: &str| format!("models[{i}].targets[{j}].{name}");
                declared(&providers, "provider", &target.provider, || field("provider"))?;
                check_credential(target, &credentials).map_err(|message| Fault::new(field("credential"), message))?;
            }
        }
        self.check_group_references()?;
        self.check_owner_references()
    }

    fn check_group_references(&self) -> Result<(), Fault> {
        let (orgs, models) = (names(self.orgs.as_deref()), names(self.models.as_deref()));
        let credentials = names(self.credentials.as_deref());
        for (i, group) in self.groups.iter().flatten().enumerate() {
            let scope = [
                ("orgs", "org", &group.orgs, &orgs),
                ("models", "model", &group.models, &models),
                ("credentials", "credential", &group.credentials, &credentials),
            ];
            for (field, kind, named, known) in scope {
                for (j, name) in named.iter().flatten().enumerate() {
                    declared(known, kind, name, || format!("groups[{i}].{field}[{j}]"))?;
                }
            }
        }
        Ok(())
    }

    fn check_owner_references(&self) -> Result<(), Fault> {
        let (orgs, teams) = (names(self.orgs.as_deref()), names(self.teams.as_deref()));
        let (users, models) = (names(self.users.as_deref()), names(self.models.as_deref()));
        for (i, team) in self.teams.iter().flatten().enumerate() {
            declared(&orgs, "org", &team.org, || format!("teams[{i}].org"))?;
        }
        for (i, user) in self.users.iter().flatten().enumerate() {
            declared(&orgs, "org", &user.org, || format!("users[{i}].org"))?;
            if let Some(team) = &user.team {
                declared(&teams, "team", &format!("{}/{team}", user.org), || format!("users[{i}].team"))?;
            }
        }
        for (i, issuer) in self.issuers.iter().flatten().enumerate() {
            let by_value = issuer.org_by.iter().flat_map(|by| &by.orgs);
            let by_value = by_value.map(|(value, org)| (format!("org_by.orgs[{value:?}]"), org));
            for (field, org) in issuer.org.iter().map(|org| ("org".to_owned(), org)).chain(by_value) {
                declared(&orgs, "org", org, || format!("issuers[{i}].{field}"))?;
            }
            for (field, model) in issuer.model_names() {
                declared(&models, "model", model, || format!("issuers[{i}].{field}"))?;
            }
        }
        for (i, key) in self.keys.iter().flatten().enumerate() {
            declared(&orgs, "org", &key.org, || format!("keys[{i}].org"))?;
            if let Some(team) = &key.team {
                declared(&teams, "team", &format!("{}/{team}", key.org), || format!("keys[{i}].team"))?;
            }
            if let Some(user) = &key.user {
                declared(&users, "user", &format!("{}/{user}", key.org), || format!("keys[{i}].user"))?;
            }
            for (j, model) in key.models.iter().flatten().enumerate() {
                declared(&models, "model", model, || format!("keys[{i}].models[{j}]"))?;
            }
        }
        Ok(())
    }
}

fn check_section<T: Noun>(section: &str, nouns: Option<&[T]>) -> Result<(), Fault> {
    let mut seen = BTreeMap::new();
    for (i, noun) in nouns.unwrap_or_default().iter().enumerate() {
        let field = format!("{section}[{i}]");
        noun.check().map_err(|fault| fault.under(&field))?;
        if let Some(first) = seen.insert(noun.handle(), i) {
            let message = format!("{:?} is declared in {section}[{first}] already", noun.handle());
            return Err(Fault::new(format!("{field}.name"), message));
        }
    }
    Ok(())
}

fn names<T: Noun>(nouns: Option<&[T]>) -> BTreeSet<String> {
    nouns.unwrap_or_default().iter().map(Noun::handle).collect()
}

fn declared(names: &BTreeSet<String>, kind: &str, name: &str, field: impl Fn() -> String) -> Result<(), Fault> {
    if names.contains(name) {
        return Ok(());
    }
    Err(Fault::new(field(), format!("no {kind} of this file is named {name:?}")))
}

fn check_credential(target: &noun::Target, credentials: &BTreeMap<&str, &str>) -> Result<(), String> {
    match &target.credential {
        Some(name) => match credentials.get(name.as_str()) {
            Some(provider) if *provider == target.provider => Ok(()),
            Some(_) => Err(format!("credential {name:?} is not one of provider {:?}", target.provider)),
            None => Err(format!("no credential of this file is named {name:?}")),
        },
        None if credentials.values().filter(|provider| **provider == target.provider).count() > 1 => {
            Err(format!("provider {:?} has several; name the one to use", target.provider))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::noun::Nano;

    use super::*;

    const GOOD: &str = r#"
version: v1
providers:
- {name: openai, dialect: openai, base_url: "https://api.openai.com/v1"}
credentials:
- {name: main, provider: openai, source: "env:OPENAI_API_KEY"}
models:
- name: gpt-4o
  targets: [{provider: openai, model: gpt-4o}]
prices:
- {provider: openai, model: gpt-4o, input: "2.50", output: "10.00", tiers: [{above: 200000, input: "5.00", output: "20.00"}]}
orgs: [{name: acme}]
keys:
- {org: acme, name: ci, models: [gpt-4o], networks: [10.0.0.0/8]}
"#;

    fn fault(from: &str, to: &str) -> Fault {
        assert!(GOOD.contains(from), "{from}");
        let document = match Document::parse(&GOOD.replacen(from, to, 1)) {
            Ok(document) => document,
            Err(fault) => return fault,
        };
        document.check().and_then(|()| document.check_references()).unwrap_err()
    }

    #[test]
    fn a_good_file_passes() {
        let document = Document::parse(GOOD).unwrap();
        document.check().unwrap();
        document.check_references().unwrap();
        assert!(document.teams.is_none());
        // YAML keeps an amount without quotes as it is written.
        let unquoted = Document::parse(&GOOD.replacen("\"2.50\"", "0.0000375", 1)).unwrap();
        assert_eq!(unquoted.prices.unwrap()[0].input.0, Nano(37_500));
    }

    #[test]
    fn every_fault_names_its_field() {
        let field = |from, to| fault(from, to).field;
        assert_eq!(
            field("targets: [{provider: openai", "targets: [{provider: nobody"),
            "models[0].targets[0].provider"
        );
        assert_eq!(field("targets: [{provider: openai, model: gpt-4o}]", "targets: []"), "models[0].targets");
        assert_eq!(
            field("- {name: main,", "- {name: main, provider: openai, source: stored}\n- {name: main,"),
            "credentials[1].name"
        );
        assert_eq!(field("input: \"2.50\"", "input: \"-2.50\""), "prices[0].input");
        assert_eq!(field("above: 200000", "above: 0"), "prices[0].tiers[0].above");
        assert_eq!(field("orgs: [{name: acme}]", "orgs: [{name: acme, nmae: x}]"), "orgs[0].nmae");
        assert_eq!(field("orgs: [{name: acme}]", "orgz: []"), "orgz");
        assert_eq!(field("env:OPENAI_API_KEY", "sk-inline"), "credentials[0].source");
        assert_eq!(field("source: \"env:OPENAI_API_KEY\"", "secret: sk-1"), "credentials[0].secret");
        assert_eq!(field("https://api.openai.com/v1", "http://127.0.0.1"), "providers[0].base_url");
        assert_eq!(field("dialect: openai", "dialect: klingon"), "providers[0].dialect");
        assert_eq!(field("models: [gpt-4o]", "models: [gpt-5]"), "keys[0].models[0]");
        assert_eq!(field("10.0.0.0/8", "10.0.0.1/8"), "keys[0].networks[0]");
        assert_eq!(field("org: acme", "org: emca"), "keys[0].org");
        assert_eq!(field("version: v1", "version: v2"), "version");
    }

    #[test]
    fn a_path_is_told_once_and_a_time_is_asked_for_in_words() {
        let message = |from, to| fault(from, to).message;
        assert!(message("env:OPENAI_API_KEY", "sk-inline").starts_with("a source is `stored`"));
        let time = message("networks: [10.0.0.0/8]", "expires_at: tomorrow");
        assert!(time.starts_with("wants a time such as 2030-01-01T00:00:00Z"), "{time}");
        for empty in ["", "\n", "# nothing\n\n"] {
            assert!(Document::parse(empty).unwrap_err().message.starts_with("is empty"));
        }
    }

    #[test]
    fn an_inline_secret_is_not_in_the_message() {
        let fault = fault("env:OPENAI_API_KEY", "sk-very-secret");
        assert!(!fault.message.contains("sk-very-secret"), "{fault}");
    }
}
