//! The laws, checked against the database's history.
//!
//! What an Envoy says of a key must have been true at some revision: not before the one that it has announced, and not
//! before one that an earlier answer about the same key has shown it to know. That is law 1 (revocation holds, and for
//! good), 2 (no live key is unknown), 4 (a confirmed key is accepted) and 5 (blocked owners) at once.

use std::collections::{BTreeMap, HashMap};

use prost::Message as _;

use super::world::{KEYS, SIZES, World, model_key};
use crate::noun::{Owner, OwnerKind};
use crate::proto::dataplane::ProfileBody;
use crate::state::record::KeyRecord;
use crate::state::reference::Database;
use crate::state::{CompiledProfile, Head, Lookup};

/// What has been seen of an Envoy.
#[derive(Debug, Default)]
pub struct Witness {
    era: u64,
    announced: u64,
    /// By key, the least revision that it is known to have come to.
    shown: HashMap<usize, u64>,
    /// The time of head's last confirmation, ns.
    confirmed: u64,
    ready: bool,
}

impl Witness {
    /// Takes head in; to be called before each lookup.
    pub fn look(&mut self, world: &World) -> Result<Head, String> {
        let head = Head::read(&*world.store).map_err(|fault| fault.to_string())?;
        if head.keys.era != self.era {
            *self = Self { era: head.keys.era, ..Self::default() };
        }
        if self.ready && !head.complete {
            return Err("was complete and is no more".to_owned());
        }
        self.announced = self.announced.max(head.keys.revision);
        self.confirmed = head.confirmed.mono;
        self.ready = head.complete;
        Ok(head)
    }

    /// Reads every key, and judges what comes.
    pub fn check(&mut self, world: &mut World) -> Result<(), String> {
        for key in 0..KEYS {
            self.look(world)?;
            let answer = world.read(key, None);
            self.judge(world, key, &answer, true)?;
        }
        Ok(())
    }

    /// Judges one answer, by what was known before it was asked for. `still`: nothing changed since.
    pub fn judge(&mut self, world: &World, key: usize, answer: &Lookup, still: bool) -> Result<(), String> {
        let hash = model_key(key).hash;
        let from = self.announced.max(self.shown.get(&key).copied().unwrap_or(0));
        let fits: Box<dyn Fn(&Database) -> bool> = match answer {
            Lookup::Known { record, .. } if record.disabled() => Box::new(|db| db.keys.get(&hash) == Some(record)),
            Lookup::Known { record, profile, .. } => Box::new(|db| {
                db.keys.get(&hash) == Some(record) && blocking(db, record).is_none() && is_profile(db, record, profile)
            }),
            Lookup::Unknown => Box::new(|db| !db.keys.contains_key(&hash)),
            Lookup::Blocked { record, owner } => return self.judge_blocked(world, key, record, *owner),
            Lookup::NotReady | Lookup::StateTooOld => return self.judge_silence(world, key, from, still),
        };
        if matches!(answer, Lookup::Unknown) && still && !self.current(world) {
            return Err(format!("key {key} is unknown to a state that is not complete or not current"));
        }
        let within = self.first(world, from, &fits);
        let later_era = || world.history.range(self.era + 1..).any(|(_, chain)| chain.iter().any(&fits));
        match within {
            Some(revision) if world.db.era == self.era => {
                self.shown.insert(key, revision);
            }
            Some(_) => {}
            None if later_era() => {}
            None => return Err(format!("key {key}: {answer:?} at no revision since {from} of era {}", self.era)),
        }
        Ok(())
    }

    /// A block may hold longer than it should, until the keys have come as far as the list. It must have been one.
    fn judge_blocked(&self, world: &World, key: usize, record: &KeyRecord, owner: OwnerKind) -> Result<(), String> {
        let was = |db: &Database| blocking(db, record) == Some(owner);
        let ever = world.history.values().flatten().any(was);
        ever.then_some(()).ok_or_else(|| format!("key {key} is blocked by an owner who never was"))
    }

    /// Nothing is said when the state is incomplete or old, or while a profile's place changes hands.
    fn judge_silence(&self, world: &World, key: usize, from: u64, still: bool) -> Result<(), String> {
        if !still || !self.current(world) || world.db.era != self.era {
            return Ok(());
        }
        let mut places: HashMap<u32, u32> = HashMap::new();
        let ids = world.history[&self.era].iter().skip(from as usize).flat_map(|db| db.profiles.keys());
        let handed_over = ids.into_iter().any(|id| *places.entry(id % SIZES.profiles).or_insert(*id) != *id);
        handed_over.then_some(()).ok_or_else(|| format!("no word of key {key} since {from}"))
    }

    fn current(&self, world: &World) -> bool {
        self.ready && world.now.mono - self.confirmed < 10_000_000_000
    }

    fn first(&self, world: &World, from: u64, fits: &dyn Fn(&Database) -> bool) -> Option<u64> {
        let chain = world.history.get(&self.era)?;
        (from..).zip(chain.iter().skip(from as usize)).find(|(_, db)| fits(db)).map(|(revision, _)| revision)
    }
}

/// Law 3: when faults have stopped, an Envoy's answers are the database's.
pub fn check_settled(world: &mut World) -> Result<(), String> {
    let head = Head::read(&*world.store).map_err(|fault| fault.to_string())?;
    if (head.keys.era, head.keys.revision) != (world.db.era, world.db.revision) {
        return Err(format!("settled at {:?}, the database is at {} {}", head.keys, world.db.era, world.db.revision));
    }
    if head.announced != head.blocked || head.blocked.era != world.db.era {
        return Err(format!("the blocked list is not in force: {head:?}"));
    }
    for key in 0..KEYS {
        let answer = world.read(key, None);
        let db = &world.db;
        let right = match (db.keys.get(&model_key(key).hash), &answer) {
            (None, Lookup::Unknown) => true,
            (Some(truth), Lookup::Known { record, profile, .. }) => {
                truth == record && blocking(db, truth).is_none() && is_profile(db, truth, profile)
            }
            (Some(truth), Lookup::Blocked { record, owner }) => truth == record && blocking(db, truth) == Some(*owner),
            _ => false,
        };
        if !right {
            return Err(format!("settled, and key {key} is {answer:?}"));
        }
    }
    Ok(())
}

fn blocking(db: &Database, record: &KeyRecord) -> Option<OwnerKind> {
    let owners = BTreeMap::from([
        (OwnerKind::Org, record.org),
        (OwnerKind::Team, record.team),
        (OwnerKind::User, record.user),
        (OwnerKind::Key, record.key),
    ]);
    owners.into_iter().find(|(kind, id)| db.blocked.contains(&Owner { kind: *kind, id: *id })).map(|(kind, _)| kind)
}

/// Each profile of the model allows one model of its own.
fn is_profile(db: &Database, record: &KeyRecord, profile: &CompiledProfile) -> bool {
    let body = db.profiles.get(&record.profile).and_then(|body| ProfileBody::decode(body.clone()).ok());
    body.is_some_and(|body| body.models.iter().all(|model| profile.allows_model(*model)))
}
