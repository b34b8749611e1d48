//! `Snapshot` (wire) -> `Policy` (compiled). Every check is here; a bad snapshot is refused whole, naming the field.

use std::collections::HashMap;

use super::{Backend, Dialect, Limits, List, Model, Policy, Position, issuer, names};
use crate::noun::Price;
use crate::proto::policy as wire;

/// The snapshot format this build reads.
pub const SNAPSHOT_VERSION: u32 = 1;
/// What a snapshot may list in `requires`.
pub const FEATURES: &[&str] = &[];

const MAX_NAME_BYTES: usize = 128;

/// Why a snapshot is refused. `field` is a path into it, such as `models[2].lists[0].positions[1].backend`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct CompileError {
    pub field: String,
    pub message: String,
}

pub(super) type Result<T> = std::result::Result<T, CompileError>;

pub(super) fn refuse<T>(field: impl Into<String>, message: impl Into<String>) -> Result<T> {
    Err(CompileError { field: field.into(), message: message.into() })
}

impl Policy {
    /// Checks and resolves the whole of `snapshot`.
    ///
    /// # Errors
    /// The first fault found: an unknown version or feature, a name or id that is empty, too long or not unique,
    /// a reference to nothing, an empty list, a bad price.
    pub fn compile(snapshot: &wire::Snapshot, revision: u64) -> Result<Self> {
        if snapshot.version != SNAPSHOT_VERSION {
            return refuse(
                "version",
                format!("{} is not {SNAPSHOT_VERSION}, which this filter reads", snapshot.version),
            );
        }
        for (i, feature) in snapshot.requires.iter().enumerate() {
            if !FEATURES.contains(&feature.as_str()) {
                return refuse(format!("requires[{i}]"), format!("this filter does not know {feature:?}; update it"));
            }
        }
        let prices = unique("prices", &snapshot.prices, |p| p.id)?;
        let providers = unique("providers", &snapshot.providers, |p| p.id)?;
        unique("providers", &snapshot.providers, |p| p.name.as_str())?;
        let prices = compile_prices(&prices)?;
        let backends = compile_backends(snapshot, &providers, &prices)?;
        let models = compile_models(snapshot, &backends)?;
        let (limits, default) = (snapshot.limits.unwrap_or_default(), Limits::default());
        let or = |value: u64, default: u64| if value == 0 { default } else { value };
        Ok(Self {
            revision,
            limits: Limits {
                max_body_bytes: or(limits.max_body_bytes, default.max_body_bytes),
                max_staleness_ms: or(limits.max_staleness_ms, default.max_staleness_ms),
            },
            models,
            backends,
            issuers: issuer::compile(&snapshot.issuers)?,
        })
    }
}

/// What can be a key: an id, where 0 means nothing, or a name.
pub(super) trait Handle: Eq + std::hash::Hash + std::fmt::Debug + Copy {
    const FIELD: &'static str;
    fn fault(self) -> Option<String>;
}

impl Handle for u32 {
    const FIELD: &'static str = "id";
    fn fault(self) -> Option<String> {
        (self == 0).then(|| "must not be 0".to_owned())
    }
}

impl Handle for &str {
    const FIELD: &'static str = "name";
    fn fault(self) -> Option<String> {
        if self.is_empty() {
            Some("must not be empty".to_owned())
        } else if self.len() > MAX_NAME_BYTES {
            Some(format!("is longer than {MAX_NAME_BYTES} bytes"))
        } else if self.bytes().any(|b| b.is_ascii_control()) {
            Some("must not contain control characters".to_owned())
        } else {
            None
        }
    }
}

/// Indexes `items` by a handle that each must have for itself.
pub(super) fn unique<'a, T, H: Handle>(
    list: &str,
    items: &'a [T],
    handle: impl Fn(&'a T) -> H,
) -> Result<HashMap<H, (usize, &'a T)>> {
    let mut seen = HashMap::with_capacity(items.len());
    for (i, item) in items.iter().enumerate() {
        let key = handle(item);
        if let Some(fault) = key.fault() {
            return refuse(format!("{list}[{i}].{}", H::FIELD), fault);
        }
        if let Some((first, _)) = seen.insert(key, (i, item)) {
            return refuse(format!("{list}[{i}].{}", H::FIELD), format!("{key:?} is already that of {list}[{first}]"));
        }
    }
    Ok(seen)
}

fn compile_prices(prices: &HashMap<u32, (usize, &wire::Price)>) -> Result<HashMap<u32, Price>> {
    prices
        .iter()
        .map(|(id, (i, price))| match Price::compile(price) {
            Ok(price) => Ok((*id, price)),
            Err(e) => refuse(format!("prices[{i}].{}", e.field), e.reason),
        })
        .collect()
}

fn compile_backends(
    snapshot: &wire::Snapshot,
    providers: &HashMap<u32, (usize, &wire::Provider)>,
    prices: &HashMap<u32, Price>,
) -> Result<HashMap<u32, Backend>> {
    for (i, provider) in snapshot.providers.iter().enumerate() {
        check_provider(i, provider)?;
    }
    unique("backends", &snapshot.backends, |b| b.name.as_str())?;
    let mut backends = HashMap::with_capacity(snapshot.backends.len());
    for (id, (i, backend)) in unique("backends", &snapshot.backends, |b| b.id)? {
        let Some((_, provider)) = providers.get(&backend.provider) else {
            return refuse(format!("backends[{i}].provider"), format!("no provider has id {}", backend.provider));
        };
        let price = match backend.price {
            0 => None,
            id => match prices.get(&id) {
                Some(price) => Some(price.clone()),
                None => return refuse(format!("backends[{i}].price"), format!("no price has id {id}")),
            },
        };
        if let Some(fault) = backend.model.as_str().fault() {
            return refuse(format!("backends[{i}].model"), fault);
        }
        let dialect = match provider.dialect() {
            wire::Dialect::Openai => Dialect::OpenAi,
            wire::Dialect::Unspecified => {
                return refuse(format!("backends[{i}].provider"), "its provider has no dialect");
            }
        };
        backends.insert(
            id,
            Backend {
                id,
                name: backend.name.clone(),
                provider: provider.name.clone(),
                dialect,
                authority: provider.authority.clone(),
                path: provider.path.clone(),
                model: backend.model.clone(),
                price,
            },
        );
    }
    Ok(backends)
}

fn check_provider(i: usize, provider: &wire::Provider) -> Result<()> {
    if wire::Dialect::try_from(provider.dialect).is_ok_and(|d| d != wire::Dialect::Unspecified) {
    } else {
        return refuse(
            format!("providers[{i}].dialect"),
            format!("this filter does not know dialect {}", provider.dialect),
        );
    }
    let header_safe = |s: &str| s.bytes().all(|b| b.is_ascii_graphic());
    if provider.authority.is_empty() || !header_safe(&provider.authority) {
        return refuse(format!("providers[{i}].authority"), "must be a host, with or without a port");
    }
    let path_ok = provider.path.is_empty() || (provider.path.starts_with('/') && !provider.path.ends_with('/'));
    if !path_ok || !header_safe(&provider.path) {
        return refuse(format!("providers[{i}].path"), "must be empty, or start with a slash and not end with one");
    }
    Ok(())
}

fn compile_models(snapshot: &wire::Snapshot, backends: &HashMap<u32, Backend>) -> Result<HashMap<String, Model>> {
    unique("models", &snapshot.models, |m| m.id)?;
    let mut models = HashMap::with_capacity(snapshot.models.len());
    for (name, (i, model)) in unique("models", &snapshot.models, |m| m.name.as_str())? {
        if model.lists.is_empty() {
            return refuse(format!("models[{i}].lists"), "a model needs at least one list of backends");
        }
        let lists = model
            .lists
            .iter()
            .enumerate()
            .map(|(j, list)| compile_list(&format!("models[{i}].lists[{j}]"), list, backends))
            .collect::<Result<Vec<_>>>()?;
        let total_weight = lists.iter().map(|l| u64::from(l.weight)).sum();
        models.insert(name.to_owned(), Model { id: model.id, name: name.to_owned(), lists, total_weight });
    }
    Ok(models)
}

fn compile_list(field: &str, list: &wire::WeightedList, backends: &HashMap<u32, Backend>) -> Result<List> {
    if list.weight == 0 {
        return refuse(format!("{field}.weight"), "must not be 0");
    }
    if list.positions.is_empty() {
        return refuse(format!("{field}.positions"), "must not be empty");
    }
    let mut positions = Vec::with_capacity(list.positions.len());
    for (k, position) in list.positions.iter().enumerate() {
        if !backends.contains_key(&position.backend) {
            return refuse(
                format!("{field}.positions[{k}].backend"),
                format!("no backend has id {}", position.backend),
            );
        }
        let position = Position { backend: position.backend, credential: position.credential };
        if positions.contains(&position) {
            return refuse(format!("{field}.positions[{k}]"), "stands in this list already");
        }
        positions.push(position);
    }
    Ok(List { weight: list.weight, cluster: names::list_cluster(&positions), positions })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> wire::Snapshot {
        let position = |backend, credential| wire::Position { backend, credential };
        wire::Snapshot {
            version: 1,
            providers: vec![wire::Provider {
                id: 1,
                name: "openai".into(),
                dialect: wire::Dialect::Openai.into(),
                authority: "api.openai.com".into(),
                path: "/v1".into(),
            }],
            backends: vec![
                wire::Backend { id: 1, name: "openai/gpt-4o".into(), provider: 1, model: "gpt-4o".into(), price: 1 },
                wire::Backend {
                    id: 2,
                    name: "openai/gpt-4o-mini".into(),
                    provider: 1,
                    model: "gpt-4o-mini".into(),
                    price: 0,
                },
            ],
            models: vec![wire::Model {
                id: 1,
                name: "gpt-4o".into(),
                lists: vec![
                    wire::WeightedList { weight: 3, positions: vec![position(1, 1), position(2, 1)] },
                    wire::WeightedList { weight: 1, positions: vec![position(2, 1), position(1, 1)] },
                ],
            }],
            prices: vec![wire::Price { id: 1, tiers: vec![wire::Tier::default()] }],
            ..Default::default()
        }
    }

    fn field_of(change: impl FnOnce(&mut wire::Snapshot)) -> String {
        let mut s = snapshot();
        change(&mut s);
        Policy::compile(&s, 1).unwrap_err().field
    }

    #[test]
    fn a_good_snapshot_compiles() {
        let policy = Policy::compile(&snapshot(), 7).unwrap();
        assert_eq!(policy.revision, 7);
        let model = policy.model("gpt-4o").unwrap();
        assert_eq!(model.lists().len(), 2);
        assert_ne!(model.lists()[0].cluster, model.lists()[1].cluster);
        assert_eq!(policy.limits.max_body_bytes, 32 << 20);
    }

    #[test]
    fn a_draw_follows_the_weights() {
        let policy = Policy::compile(&snapshot(), 1).unwrap();
        let model = policy.model("gpt-4o").unwrap();
        let firsts = (0..1000_u64).filter(|i| model.draw(i * (u64::MAX / 1000)).weight == 3).count();
        assert_eq!(firsts, 751); // multiples of 1/1000 from 0 to 0.75
        assert_eq!(model.draw(u64::MAX).weight, 1);
    }

    #[test]
    fn every_fault_names_its_field() {
        assert_eq!(field_of(|s| s.version = 2), "version");
        assert_eq!(field_of(|s| s.requires = vec!["time-travel".into()]), "requires[0]");
        assert_eq!(field_of(|s| s.providers[0].id = 0), "providers[0].id");
        assert_eq!(field_of(|s| s.providers.push(s.providers[0].clone())), "providers[1].id");
        assert_eq!(field_of(|s| s.providers[0].dialect = 99), "providers[0].dialect");
        assert_eq!(field_of(|s| s.providers[0].authority = "a b".into()), "providers[0].authority");
        assert_eq!(field_of(|s| s.providers[0].path = "/v1/".into()), "providers[0].path");
        assert_eq!(field_of(|s| s.backends[1].provider = 9), "backends[1].provider");
        assert_eq!(field_of(|s| s.backends[0].price = 9), "backends[0].price");
        assert_eq!(field_of(|s| s.backends[1].name = s.backends[0].name.clone()), "backends[1].name");
        assert_eq!(field_of(|s| s.backends[0].model.clear()), "backends[0].model");
        assert_eq!(field_of(|s| s.models[0].name.clear()), "models[0].name");
        assert_eq!(field_of(|s| s.models[0].lists.clear()), "models[0].lists");
        assert_eq!(field_of(|s| s.models[0].lists[1].weight = 0), "models[0].lists[1].weight");
        assert_eq!(field_of(|s| s.models[0].lists[0].positions.clear()), "models[0].lists[0].positions");
        assert_eq!(
            field_of(|s| s.models[0].lists[0].positions[1].backend = 9),
            "models[0].lists[0].positions[1].backend"
        );
        assert_eq!(field_of(|s| s.models[0].lists[0].positions[1].backend = 1), "models[0].lists[0].positions[1]");
        assert_eq!(field_of(|s| s.prices[0].tiers[0].input = -1), "prices[0].tiers[0].input");
        assert_eq!(field_of(|s| s.prices[0].tiers.clear()), "prices[0].tiers");
    }
}
