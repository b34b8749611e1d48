//! What the Envoys of a group may hold: of whose keys, of which models, of which credentials they hear at all.

use std::collections::BTreeSet;

use sluicegate_core::proto::policy::{Model, Snapshot, WeightedList};
use sqlx::PgConnection;

use super::StoreError;

/// Ids; `None`: all there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    pub group: i32,
    pub orgs: Option<BTreeSet<u32>>,
    pub models: Option<BTreeSet<u32>>,
    pub credentials: Option<BTreeSet<u32>>,
    /// Revision of the last change of the above: an Envoy that stands before it is told everything anew.
    pub since: u64,
}

impl Scope {
    pub fn has_org(&self, id: u32) -> bool {
        self.orgs.as_ref().is_none_or(|orgs| orgs.contains(&id))
    }

    /// 0 is no credential, which every group has.
    pub fn has_credential(&self, id: u32) -> bool {
        id == 0 || self.credentials.as_ref().is_none_or(|credentials| credentials.contains(&id))
    }

    /// Whether there is anything in a policy that the group may not know.
    pub fn limits_policy(&self) -> bool {
        self.models.is_some() || self.credentials.is_some()
    }

    /// The part of a policy that the group may know: its models, by the ways it has a credential for. A model without any is
    /// none of the group's.
    pub fn cut(&self, whole: &Snapshot) -> Snapshot {
        if !self.limits_policy() {
            return whole.clone();
        }
        let has_model = |id: u32| self.models.as_ref().is_none_or(|models| models.contains(&id));
        let models: Vec<Model> = whole
            .models
            .iter()
            .filter(|model| has_model(model.id))
            .map(|model| Model {
                lists: model.lists.iter().filter_map(|list| self.cut_list(list)).collect(),
                ..model.clone()
            })
            .filter(|model| !model.lists.is_empty())
            .collect();
        let positions = || models.iter().flat_map(|m| &m.lists).flat_map(|list| &list.positions);
        let backends: BTreeSet<u32> = positions().map(|position| position.backend).collect();
        let mut cut = Snapshot { models, ..whole.clone() };
        cut.backends.retain(|backend| backends.contains(&backend.id));
        let prices: BTreeSet<u32> = cut.backends.iter().map(|backend| backend.price).collect();
        let providers: BTreeSet<u32> = cut.backends.iter().map(|backend| backend.provider).collect();
        cut.prices.retain(|price| prices.contains(&price.id));
        cut.providers.retain(|provider| providers.contains(&provider.id));
        cut
    }

    fn cut_list(&self, list: &WeightedList) -> Option<WeightedList> {
        let positions: Vec<_> = list.positions.iter().filter(|p| self.has_credential(p.credential)).copied().collect();
        (!positions.is_empty()).then_some(WeightedList { positions, ..*list })
    }
}

type Row = (i32, Option<Vec<i32>>, Option<Vec<i32>>, Option<Vec<i32>>, i64);

/// Every group's.
pub(super) async fn read(conn: &mut PgConnection) -> Result<Vec<Scope>, StoreError> {
    let rows: Vec<Row> = sqlx::query_as("select id, orgs, models, credentials, scoped_at from envoy_group order by id")
        .fetch_all(conn)
        .await?;
    let ids = |ids: Option<Vec<i32>>| ids.map(|ids| ids.into_iter().map(i32::cast_unsigned).collect());
    Ok(rows
        .into_iter()
        .map(|(group, orgs, models, credentials, since)| Scope {
            group,
            orgs: ids(orgs),
            models: ids(models),
            credentials: ids(credentials),
            since: since.cast_unsigned(),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use sluicegate_core::proto::policy::{Backend, Position, Price, Provider};

    use super::*;

    fn whole() -> Snapshot {
        let position = |backend, credential| Position { backend, credential };
        let list = |weight, positions: &[Position]| WeightedList { weight, positions: positions.to_vec() };
        let backend = |id, provider, price| Backend { id, provider, price, ..Default::default() };
        let (a, b, free) = (position(1, 10), position(2, 20), position(3, 0));
        Snapshot {
            providers: (1..=3).map(|id| Provider { id, ..Default::default() }).collect(),
            backends: vec![backend(1, 1, 1), backend(2, 2, 2), backend(3, 3, 0)],
            prices: (1..=2).map(|id| Price { id, ..Default::default() }).collect(),
            models: vec![
                Model { id: 1, lists: vec![list(9, &[a, b]), list(1, &[b, a])], ..Default::default() },
                Model { id: 2, lists: vec![list(1, &[b])], ..Default::default() },
                Model { id: 3, lists: vec![list(1, &[free])], ..Default::default() },
            ],
            ..Default::default()
        }
    }

    #[test]
    fn a_group_knows_its_own_and_no_more() {
        let scope = Scope { credentials: Some([10].into()), ..Scope::default() };
        let cut = scope.cut(&whole());
        let lists = |model: &Model| model.lists.iter().map(|l| (l.weight, l.positions.len())).collect::<Vec<_>>();
        let models: Vec<_> = cut.models.iter().map(|model| (model.id, lists(model))).collect();
        assert_eq!(models, [(1, vec![(9, 1), (1, 1)]), (3, vec![(1, 1)])]);
        assert_eq!(cut.backends.iter().map(|b| b.id).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(cut.providers.iter().map(|p| p.id).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(cut.prices.iter().map(|p| p.id).collect::<Vec<_>>(), [1]);

        let scope = Scope { models: Some([2].into()), ..Scope::default() };
        assert_eq!(scope.cut(&whole()).models.iter().map(|m| m.id).collect::<Vec<_>>(), [2]);
        assert_eq!(Scope::default().cut(&whole()), whole());
        let nothing = Scope { models: Some(BTreeSet::new()), ..Scope::default() };
        assert!(nothing.cut(&whole()).models.is_empty());
    }
}
