//! A database, two replicas of the control plane, streams, and the VMs of one Envoy.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ::bytes::Bytes;
use prost::Message as _;

use super::fault::Fault;
use super::store::{Early, Store};
use crate::noun::{Owner, OwnerKind};
use crate::proto::dataplane::{ProfileBody, SyncDown, sync_down::M};
use crate::state::boot::{Boot, Sizes};
use crate::state::feed::{ClockReading, Feed, HelloFacts, Next, View};
use crate::state::record::{KeyRecord, bucket_of};
use crate::state::reference::{Database, key};
use crate::state::store::keys;
use crate::state::{Effect, Head, Lookup, Reader, Session, Times};

pub const SIZES: Sizes = Sizes { seats: 1, buckets: 4, profiles: PROFILES, credentials: 1, policy_parts: 1 };
const PROFILES: u32 = 3;
/// Two keys share the first bucket, the fourth is always empty.
pub const KEYS: usize = 4;
const MAX_STREAMS: usize = 4;
const SECOND: u64 = 1_000_000_000;

/// Key `n` of the model, as it is created.
pub fn model_key(n: usize) -> KeyRecord {
    let n = n as u32;
    key([0x0000_0000, 0x1000_0000, 0x4000_0000, 0x8000_0000][n as usize % KEYS], n)
}

/// What a transaction does.
#[derive(Clone, Debug)]
pub enum Commit {
    /// Creates or changes a key, with a profile that others have or a new one.
    Put {
        key: usize,
        new_profile: bool,
    },
    Disable {
        key: usize,
    },
    Remove {
        key: usize,
    },
    /// Blocks two orgs and one key, or not, by the bits.
    Block {
        owners: u8,
    },
}

/// One Sync stream: the replica's end, what is under way, and the VM's end.
pub struct Stream {
    pub replica: usize,
    /// `None`: the control plane has closed it.
    feed: Option<Feed>,
    hello: HelloFacts,
    session: Session,
    flight: VecDeque<SyncDown>,
    pub dead: bool,
}

pub struct World {
    pub store: Rc<Store>,
    pub db: Database,
    /// By era, and in it by revision.
    pub history: BTreeMap<u64, Vec<Database>>,
    pub replicas: [Database; 2],
    pub streams: Vec<Rc<RefCell<Stream>>>,
    pub reader: Reader,
    pub now: Times,
    pub fault: Option<Fault>,
    /// Messages that were applied and may come again.
    kept: Vec<SyncDown>,
    last_profile: u32,
}

impl World {
    pub fn new(fault: Option<Fault>) -> Self {
        let mut db = Database::new(1);
        db.profiles.clear();
        let store = Rc::new(Store::default());
        Boot::read_or_create(&*store, 1).unwrap();
        Boot::fix(&*store, SIZES).unwrap();
        let mut world = Self {
            store,
            history: BTreeMap::from([(1, vec![db.clone()])]),
            replicas: [db.clone(), db.clone()],
            db,
            streams: Vec::new(),
            reader: Reader::default(),
            now: Times { mono: SECOND, wall: SECOND },
            fault,
            kept: Vec::new(),
            last_profile: 0,
        };
        for key in 0..KEYS - 1 {
            world.commit(&Commit::Put { key, new_profile: key == 0 });
        }
        world.replicas = [world.db.clone(), world.db.clone()];
        world
    }

    pub fn commit(&mut self, commit: &Commit) {
        match *commit {
            Commit::Put { key, new_profile } => {
                let profile = self.profile(new_profile);
                self.db.put(KeyRecord { profile, ..model_key(key) });
            }
            Commit::Disable { key } if self.db.keys.contains_key(&model_key(key).hash) => {
                self.db.disable(&model_key(key).hash);
            }
            Commit::Remove { key } if self.db.keys.contains_key(&model_key(key).hash) => {
                self.db.remove(&model_key(key).hash);
            }
            Commit::Disable { .. } | Commit::Remove { .. } => return,
            Commit::Block { owners } => {
                let all = [(OwnerKind::Org, 1), (OwnerKind::Org, 2), (OwnerKind::Key, 1)];
                let chosen = all.into_iter().enumerate().filter(|(bit, _)| owners >> bit & 1 == 1);
                self.db.block(chosen.map(|(_, (kind, id))| Owner { kind, id }));
            }
        }
        let named: Vec<u32> = self.db.keys.values().map(|record| record.profile).collect();
        self.db.profiles.retain(|id, _| named.contains(id));
        self.history.get_mut(&self.db.era).unwrap().push(self.db.clone());
    }

    /// The highest living profile, or a new one at a place that no living one has.
    fn profile(&mut self, new: bool) -> u32 {
        let living: Vec<u32> = self.db.profiles.keys().copied().collect();
        let free = |id: &u32| living.iter().all(|l| l % PROFILES != id % PROFILES);
        match living.last() {
            Some(&last) if !new || living.len() == PROFILES as usize => last,
            _ => {
                let id = (self.last_profile + 1..).find(free).unwrap();
                self.last_profile = id;
                let body = ProfileBody { models: vec![id * 100 + self.db.era as u32], ..ProfileBody::default() };
                self.db.profiles.insert(id, Bytes::from(body.encode_to_vec()));
                id
            }
        }
    }

    /// The database comes back as it was `revisions` ago, and gives the same ids again.
    pub fn restore(&mut self, revisions: u64) {
        let chain = &self.history[&self.db.era];
        let backup = self.db.revision.saturating_sub(revisions);
        let chain = chain[..=backup as usize].to_vec();
        self.db.restore(&chain[backup as usize]);
        self.last_profile = self.db.profiles.keys().last().copied().unwrap_or(0);
        self.history.insert(self.db.era, chain);
        self.replicas[0] = self.db.clone();
    }

    /// A replica reads on, by some revisions.
    pub fn catch_up(&mut self, replica: usize, revisions: u64) {
        let old = &self.replicas[replica];
        let chain = &self.history[&self.db.era];
        let from = if old.era == self.db.era { old.revision } else { self.db.revision };
        let to = (from + revisions).min(self.db.revision);
        let mut new = chain[to as usize].clone();
        new.era = self.db.era;
        if old.era == new.era {
            new.keep_cut_of(old);
        }
        self.replicas[replica] = new;
    }

    /// A VM says Hello, as the holder of a subscription or as the one that takes it over.
    pub fn open(&mut self, replica: usize) {
        let head = Head::read(&*self.store).unwrap();
        let hello = HelloFacts {
            era: head.keys.era,
            key_revision: head.keys.revision,
            complete: head.complete,
            buckets: SIZES.buckets,
            profiles: SIZES.profiles,
        };
        let hello = self.fault.map_or(hello, |fault| fault.in_hello(hello, &self.replicas[replica]));
        if self.streams.len() == MAX_STREAMS {
            self.streams.remove(0);
        }
        self.streams.push(Rc::new(RefCell::new(Stream {
            replica,
            feed: Some(Feed::new(hello)),
            hello,
            session: Session::default(),
            flight: VecDeque::new(),
            dead: false,
        })));
    }

    pub fn tick(&self, stream: &RefCell<Stream>) {
        if let Some(feed) = &mut stream.borrow_mut().feed {
            feed.tick(self.reading());
        }
    }

    /// The replica writes messages to the stream. Returns how many.
    pub fn send(&self, stream: &RefCell<Stream>, most: usize) -> usize {
        let mut stream = stream.borrow_mut();
        let Stream { replica, feed, hello, flight, .. } = &mut *stream;
        let view = &self.replicas[*replica];
        for sent in 0..most {
            let Some(up) = feed else { return sent };
            let next = match self.fault {
                Some(Fault::LogCutIgnored) => up.next(&Uncut(view)),
                _ => up.next(view),
            };
            match next {
                Next::Idle => return sent,
                Next::NewEra => *feed = None,
                Next::Send(message) => {
                    for message in smaller(message) {
                        match self.fault {
                            None => flight.push_back(message),
                            Some(fault) => fault.in_flight(message, up.resyncing(), hello, flight),
                        }
                    }
                }
            }
        }
        most
    }

    pub fn deliver(&mut self, stream: &RefCell<Stream>, most: usize) {
        deliver(&self.store, stream, most, self.now);
    }

    /// The next message is applied, and may come again later.
    pub fn deliver_and_keep(&mut self, stream: &RefCell<Stream>) {
        let Some(message) = stream.borrow().flight.front().cloned() else { return };
        self.deliver(stream, 1);
        if !stream.borrow().dead {
            self.kept.push(message);
        }
    }

    /// A message that was applied once comes again, on a stream long forgotten.
    pub fn again(&mut self) {
        if let Some(message) = self.kept.pop() {
            Session::default().apply(&*self.store, Some(SIZES), message, self.now).unwrap();
        }
    }

    /// Reads a key, while a stream delivers to another VM before the reader's call number `calls`.
    pub fn read(&mut self, key: usize, between: Option<(u32, Rc<RefCell<Stream>>)>) -> Lookup {
        let (store, now, fault) = (Rc::clone(&self.store), self.now, self.fault);
        let hash = model_key(key).hash;
        let mut whole = [0; 32];
        whole[..16].copy_from_slice(&hash);
        let reader = &mut self.reader;
        let mut lookup = || match fault {
            Some(Fault::BucketBeforeHead) => {
                let early = Early::new(&store, keys::bucket(bucket_of(&hash, SIZES.buckets)));
                reader.lookup(&early, &whole, now, u64::MAX).unwrap()
            }
            _ => reader.lookup(&*store, &whole, now, u64::MAX).unwrap(),
        };
        match between {
            None => lookup(),
            Some((calls, stream)) => {
                store.interrupted(calls, move |store| deliver(store, &stream, usize::MAX, now), lookup)
            }
        }
    }

    pub fn reading(&self) -> ClockReading {
        self.db.reading(i64::try_from(self.now.wall).unwrap())
    }
}

/// The VM applies what came, until something goes wrong.
pub fn deliver(store: &Store, stream: &RefCell<Stream>, most: usize, now: Times) {
    let mut stream = stream.borrow_mut();
    for _ in 0..most {
        let Some(message) = stream.flight.pop_front() else {
            stream.dead |= stream.feed.is_none();
            return;
        };
        match stream.session.apply(store, Some(SIZES), message, now) {
            Ok(None | Some(Effect::Complete)) => {}
            Ok(Some(Effect::Reopen { .. } | Effect::Policy { .. })) | Err(_) => {
                stream.dead = true;
                return;
            }
        }
    }
}

/// The same as it would go under a lower limit of a message's size.
fn smaller(message: SyncDown) -> Vec<SyncDown> {
    let parts =
        match message.m {
            Some(M::Keys(keys)) => {
                let era = keys.era;
                let single = |bucket| M::Keys(crate::proto::dataplane::Keys { era, buckets: vec![bucket] });
                keys.buckets.into_iter().map(single).collect()
            }
            Some(M::Blocked(list)) if list.owners.len() > 1 => {
                let count = list.owners.len() as u32;
                let owners = list.owners.iter().enumerate();
                let part = |(index, owner): (usize, &crate::proto::dataplane::Owner)| {
                    crate::proto::dataplane::Blocked { index: index as u32, count, owners: vec![*owner], ..list }
                };
                owners.map(part).map(M::Blocked).collect()
            }
            other => other.into_iter().collect::<Vec<_>>(),
        };
    parts.into_iter().map(|m| SyncDown { m: Some(m) }).collect()
}

/// A view that takes its log for whole.
struct Uncut<'a>(&'a Database);

impl View for Uncut<'_> {
    fn era(&self) -> u64 {
        self.0.era()
    }
    fn revision(&self) -> u64 {
        self.0.revision()
    }
    fn bucket(&self, index: u32, count: u32) -> Vec<KeyRecord> {
        self.0.bucket(index, count)
    }
    fn changed_since(&self, since: u64) -> Option<Vec<u32>> {
        Some(self.0.changed_since(since).unwrap_or_default())
    }
    fn next_occupied(&self, from: u32, count: u32) -> Option<u32> {
        self.0.next_occupied(from, count)
    }
    fn profile(&self, id: u32) -> Option<Bytes> {
        self.0.profile(id)
    }
    fn blocked(&self) -> (u64, &[Owner]) {
        self.0.blocked()
    }
}
