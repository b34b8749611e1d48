//! The policy: what Envoys work by, built from the store.

use std::collections::{BTreeMap, BTreeSet};

use prost::Message as _;
use sha2::{Digest, Sha256};
use sluicegate_core::policy::{Policy, SNAPSHOT_VERSION};
use sluicegate_core::proto::policy as wire;
use sqlx::PgConnection;
use sqlx::types::Json;

use super::noun::{Dialect, Issuer, Noun as _, Price, Provider, Tier, Which};
use super::{Endpoint, Fault, Scope, Store, StoreError, WriteError, scope};

/// Builds the policy, refuses the write if it does not compile, and stores it under `revision` if its content is new.
/// To be called with the counter held. Returns whether it was new.
pub(super) async fn rebuild(conn: &mut PgConnection, revision: i64) -> Result<bool, WriteError> {
    let snapshot = build(&Facts::load(conn).await?)?;
    Policy::compile(&snapshot, revision.cast_unsigned())
        .map_err(|e| Fault::new(named(&snapshot, &e.field), e.message))?;
    let encoded = snapshot.encode_to_vec();
    let hash = Sha256::digest(&encoded).to_vec();
    let inserted = sqlx::query(
        "insert into policy (revision, hash, snapshot) select $1, $2, $3
         where $2 is distinct from (select hash from policy order by revision desc limit 1)",
    )
    .bind(revision)
    .bind(hash)
    .bind(encoded)
    .execute(conn)
    .await?;
    Ok(inserted.rows_affected() > 0)
}

/// What a policy is built from, as it stands in the tables.
#[derive(Debug, Default)]
struct Facts {
    providers: Vec<(i32, Provider)>,
    /// Credential ids by provider.
    credentials: BTreeMap<i32, Vec<i32>>,
    prices: Vec<PriceRow>,
    models: Vec<(i32, String)>,
    targets: BTreeMap<i32, Vec<TargetRow>>,
    issuers: Vec<(i32, Issuer)>,
}

#[derive(Debug)]
struct PriceRow {
    id: i32,
    provider: i32,
    model: String,
    tiers: Vec<Tier>,
}

#[derive(Clone, Debug, sqlx::FromRow)]
struct TargetRow {
    model_id: i32,
    backend_id: i32,
    provider_id: i32,
    provider: String,
    backend_model: String,
    credential_id: Option<i32>,
    credential_provider: Option<i32>,
    weight: Option<i32>,
}

impl Facts {
    async fn load(conn: &mut PgConnection) -> Result<Self, sqlx::Error> {
        let providers = Provider::load(conn, Which::ALL).await?;
        let credentials: Vec<(i32, i32)> =
            sqlx::query_as("select provider_id, id from credential order by id").fetch_all(&mut *conn).await?;
        let prices: Vec<(i32, i32, String, Json<Vec<Tier>>)> =
            sqlx::query_as("select id, provider_id, model, tiers from price order by id").fetch_all(&mut *conn).await?;
        let models = sqlx::query_as("select id, name from model order by id").fetch_all(&mut *conn).await?;
        let rows: Vec<TargetRow> = sqlx::query_as(
            "select t.model_id, t.backend_id, b.provider_id, p.name as provider, b.model as backend_model,
                    t.credential_id, c.provider_id as credential_provider, t.weight
             from model_target t join backend b on b.id = t.backend_id join provider p on p.id = b.provider_id
             left join credential c on c.id = t.credential_id
             order by t.model_id, t.position",
        )
        .fetch_all(&mut *conn)
        .await?;
        let issuers = Issuer::load(conn, Which::ALL).await?.into_iter().map(|i| (i.id, i.noun)).collect();
        let mut facts = Self { models, issuers, ..Self::default() };
        facts.providers = providers.into_iter().map(|p| (p.id, p.noun)).collect();
        for (provider, id) in credentials {
            facts.credentials.entry(provider).or_default().push(id);
        }
        for (id, provider, model, Json(tiers)) in prices {
            facts.prices.push(PriceRow { id, provider, model, tiers });
        }
        for target in rows {
            facts.targets.entry(target.model_id).or_default().push(target);
        }
        Ok(facts)
    }
}

fn build(facts: &Facts) -> Result<wire::Snapshot, Fault> {
    let price_of: BTreeMap<(i32, &str), i32> =
        facts.prices.iter().map(|price| ((price.provider, price.model.as_str()), price.id)).collect();
    let mut backends: BTreeMap<i32, wire::Backend> = BTreeMap::new();
    let mut models = Vec::with_capacity(facts.models.len());
    for (id, name) in &facts.models {
        let targets = facts.targets.get(id).map(Vec::as_slice).unwrap_or_default();
        for t in targets {
            let price = price_of.get(&(t.provider_id, t.backend_model.as_str())).copied().unwrap_or(0);
            backends.entry(t.backend_id).or_insert_with(|| wire::Backend {
                id: t.backend_id.cast_unsigned(),
                name: format!("{}/{}", t.provider, t.backend_model),
                provider: t.provider_id.cast_unsigned(),
                model: t.backend_model.clone(),
                price: price.cast_unsigned(),
            });
        }
        let lists = lists(targets, facts).map_err(|fault| fault.under(&format!("models[{name:?}]")))?;
        models.push(wire::Model { id: id.cast_unsigned(), name: name.clone(), lists });
    }
    Ok(wire::Snapshot {
        version: SNAPSHOT_VERSION,
        providers: facts.providers.iter().map(provider).collect::<Result<_, _>>()?,
        backends: backends.into_values().collect(),
        models,
        prices: facts.prices.iter().map(|price| Price::to_wire(price.id, &price.tiers)).collect(),
        issuers: facts.issuers.iter().map(issuer).collect(),
        ..Default::default()
    })
}

fn issuer((id, issuer): &(i32, Issuer)) -> wire::Issuer {
    let claims = issuer.claims().into_iter().map(|(claim, values)| wire::Claim { path: claim.0.clone(), values });
    wire::Issuer { id: id.cast_unsigned(), issuer: issuer.issuer.clone(), claims: claims.collect() }
}

fn provider((id, provider): &(i32, Provider)) -> Result<wire::Provider, Fault> {
    let endpoint = provider
        .endpoint()
        .map_err(|e| Fault::new(format!("providers[{:?}].base_url", provider.name), e.to_string()))?;
    let dialect = match provider.dialect {
        Dialect::Openai => wire::Dialect::Openai,
    };
    Ok(wire::Provider {
        id: id.cast_unsigned(),
        name: provider.name.clone(),
        dialect: dialect.into(),
        authority: endpoint.authority,
        path: endpoint.path,
    })
}

/// Without weights one list; with them one per target, which stands first in it, the others following in order.
fn lists(targets: &[TargetRow], facts: &Facts) -> Result<Vec<wire::WeightedList>, Fault> {
    let positions: Vec<wire::Position> = targets
        .iter()
        .enumerate()
        .map(|(i, target)| position(target, facts).map_err(|fault| fault.under(&format!("targets[{i}]"))))
        .collect::<Result<_, _>>()?;
    let mut seen = BTreeSet::new();
    for (i, position) in positions.iter().enumerate() {
        if !seen.insert((position.backend, position.credential)) {
            return Err(Fault::new(format!("targets[{i}]"), "stands in this list already, with the same credential"));
        }
    }
    if targets.iter().all(|target| target.weight.is_none()) {
        return Ok(vec![wire::WeightedList { weight: 1, positions }]);
    }
    let rotation = |(i, target): (usize, &TargetRow)| {
        let Some(weight) = target.weight else {
            return Err(Fault::new(format!("targets[{i}].weight"), "is missing: other targets have one"));
        };
        let first = positions.iter().skip(i).take(1);
        let others = positions.iter().enumerate().filter(|(k, _)| *k != i).map(|(_, position)| position);
        Ok(wire::WeightedList { weight: weight.cast_unsigned(), positions: first.chain(others).copied().collect() })
    };
    targets.iter().enumerate().map(rotation).collect()
}

/// The named credential, else the provider's only one, else none where it has none.
fn position(target: &TargetRow, facts: &Facts) -> Result<wire::Position, Fault> {
    let own = facts.credentials.get(&target.provider_id).map(Vec::as_slice).unwrap_or_default();
    let credential = match (target.credential_id, own) {
        (Some(id), _) if target.credential_provider == Some(target.provider_id) => id,
        (Some(_), _) => {
            return Err(Fault::new("credential", format!("is not one of provider {:?}", target.provider)));
        }
        (None, []) => 0,
        (None, [only]) => *only,
        (None, _) => {
            let message = format!("provider {:?} has several; name the one to use", target.provider);
            return Err(Fault::new("credential", message));
        }
    };
    Ok(wire::Position { backend: target.backend_id.cast_unsigned(), credential: credential.cast_unsigned() })
}

/// A path into the snapshot with the noun's name in the place of its index: `models["gpt-4o"].lists[0]`.
fn named(snapshot: &wire::Snapshot, field: &str) -> String {
    let name = |list: &str, i: usize| match list {
        "providers" => snapshot.providers.get(i).map(|p| p.name.clone()),
        "backends" => snapshot.backends.get(i).map(|b| b.name.clone()),
        "models" => snapshot.models.get(i).map(|m| m.name.clone()),
        _ => None,
    };
    let split = || {
        let (list, rest) = field.split_once('[')?;
        let (index, rest) = rest.split_once(']')?;
        Some(format!("{list}[{:?}]{rest}", name(list, index.parse().ok()?)?))
    };
    split().unwrap_or_else(|| field.to_owned())
}

/// Where a provider answers, for whoever opens connections to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderEndpoint {
    pub provider: u32,
    pub name: String,
    pub endpoint: Endpoint,
    /// PEM; `None`: the public roots.
    pub ca: Option<String>,
}

/// One position of the policy in force and where its provider answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    pub backend: u32,
    pub credential: u32,
    pub endpoint: ProviderEndpoint,
}

/// An issuer of tokens, as whoever verifies them sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIssuer {
    pub id: u32,
    /// The `iss` claim.
    pub iss: String,
    pub audiences: Vec<String>,
    pub keys: TokenKeys,
}

/// What an issuer signs with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenKeys {
    /// A JWK set.
    Inline(String),
    Fetched {
        uri: String,
        endpoint: Endpoint,
        /// PEM; `None`: the public roots.
        ca: Option<String>,
    },
}

/// What xDS is made of.
#[derive(Clone, Debug)]
pub struct Reachable {
    /// Of the policy.
    pub revision: u64,
    /// Of the last change of the policy, or of what a group may have of it.
    pub changed: u64,
    pub scopes: Vec<Scope>,
    pub snapshot: wire::Snapshot,
    /// The policy's positions.
    pub clusters: Vec<Cluster>,
    pub issuers: Vec<TokenIssuer>,
}

impl Store {
    /// Every provider, by id.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn provider_endpoints(&self) -> Result<BTreeMap<u32, ProviderEndpoint>, StoreError> {
        let mut conn = self.pool.acquire().await?;
        endpoints(&mut conn).await
    }

    /// The policy in force with the endpoints of its positions and issuers. `None` before the first one. Read in one snapshot.
    ///
    /// # Errors
    /// When the database is away, or holds a policy that is not one.
    pub async fn reachable(&self) -> Result<Option<Reachable>, StoreError> {
        let mut tx = self.pool.begin_with("begin isolation level repeatable read read only").await?;
        let row: Option<(i64, Vec<u8>)> =
            sqlx::query_as("select revision, snapshot from policy order by revision desc limit 1")
                .fetch_optional(&mut *tx)
                .await?;
        let Some((revision, encoded)) = row else { return Ok(None) };
        let snapshot = wire::Snapshot::decode(encoded.as_slice()).map_err(|e| sqlx::Error::Decode(Box::new(e)))?;
        let endpoints = endpoints(&mut tx).await?;
        let provider_of: BTreeMap<u32, u32> = snapshot.backends.iter().map(|b| (b.id, b.provider)).collect();
        let positions: BTreeSet<(u32, u32)> = snapshot
            .models
            .iter()
            .flat_map(|model| &model.lists)
            .flat_map(|list| &list.positions)
            .map(|position| (position.backend, position.credential))
            .collect();
        let cluster = |(backend, credential)| {
            let endpoint = endpoints.get(provider_of.get(&backend)?)?.clone();
            Some(Cluster { backend, credential, endpoint })
        };
        let clusters = positions.into_iter().filter_map(cluster).collect();
        let issuers =
            Issuer::load(&mut tx, Which::ALL).await?.into_iter().map(token_issuer).collect::<Result<_, _>>()?;
        let changed: i64 = sqlx::query_scalar("select policy from revision where one").fetch_one(&mut *tx).await?;
        let scopes = scope::read(&mut tx).await?;
        let (revision, changed) = (revision.cast_unsigned(), changed.cast_unsigned());
        Ok(Some(Reachable { revision, changed, scopes, snapshot, clusters, issuers }))
    }
}

fn token_issuer(stored: super::noun::Stored<Issuer>) -> Result<TokenIssuer, StoreError> {
    let endpoint = stored.noun.endpoint().transpose().map_err(|e| sqlx::Error::Decode(Box::new(e)))?;
    let Issuer { issuer: iss, audiences, jwks_uri, jwks, ca, .. } = stored.noun;
    let keys = match (endpoint, jwks_uri, jwks) {
        (Some(endpoint), Some(uri), _) => TokenKeys::Fetched { uri, endpoint, ca },
        (_, _, Some(jwks)) => TokenKeys::Inline(jwks.to_string()),
        _ => return Err(StoreError::Damaged("an issuer has no keys")),
    };
    Ok(TokenIssuer { id: stored.id.cast_unsigned(), iss, audiences, keys })
}

async fn endpoints(conn: &mut PgConnection) -> Result<BTreeMap<u32, ProviderEndpoint>, StoreError> {
    let providers = Provider::load(conn, Which::ALL).await?;
    let endpoint = |stored: super::noun::Stored<Provider>| {
        let endpoint = stored.noun.endpoint().map_err(|e| sqlx::Error::Decode(Box::new(e)))?;
        let provider = stored.id.cast_unsigned();
        Ok((provider, ProviderEndpoint { provider, name: stored.noun.name, endpoint, ca: stored.noun.ca }))
    };
    providers.into_iter().map(endpoint).collect()
}
