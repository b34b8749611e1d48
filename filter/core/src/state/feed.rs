//! The sending side of one Sync stream: which keys, profiles, blocked owners and marks go out, and in which order.
//!
//! A stream either continues where its Envoy stands (a *delta*: the buckets that changed since) or sends every bucket (a
//! *resync*). Both send whole buckets, stamped with the revision they are the exact content at, so an Envoy may get them
//! late, doubled, and from several senders. Whatever changes meanwhile goes first, so a revocation never waits behind a
//! resync. The owner of the stream pulls one message after the other and so decides how fast they go.
//!
//! ```text
//! Hello -> Blocked -> Keys (delta) -------------------------> Mark -> Blocked?, Profiles?, Keys -> Mark ..
//!                  -> Keys (every bucket and live changes) -> ResyncEnd -> ..
//! ```

use std::collections::BTreeSet;

use bytes::Bytes;
use prost::Message as _;

use super::record::{KeyRecord, bucket_of_prefix};
use crate::noun::Owner;
use crate::proto::dataplane::{Blocked, Bucket, Keys, Mark, Profile, Profiles, ResyncEnd, SyncDown, sync_down::M};

/// No message is longer, unless one bucket or profile alone is.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Room for a message's own fields, and for tag and length of one entry.
const MESSAGE_OVERHEAD: usize = 32;
const ENTRY_OVERHEAD: usize = 6;
/// Owners in one part of the blocked list; one is at most 10 bytes with its tag and length.
const OWNERS_PER_PART: usize = 6_000;

/// All that one group of Envoys may hold of the key index, at one revision: content and revision are of one snapshot of
/// the store. A change of what the group may hold is a change of the keys and owners concerned.
pub trait View {
    fn era(&self) -> u64;
    /// Everything committed up to it is in this view, and nothing later.
    fn revision(&self) -> u64;
    /// The records of bucket `index` of `count`, sorted by hash.
    fn bucket(&self, index: u32, count: u32) -> Vec<KeyRecord>;
    /// The first 32 bits of the hash of every key that changed in `(since, revision]`, in any order, doubles allowed.
    /// `None`: the log of changes does not reach back so far.
    fn changed_since(&self, since: u64) -> Option<Vec<u32>>;
    /// The first bucket at or after `from`, of `count`, that has records.
    fn next_occupied(&self, from: u32, count: u32) -> Option<u32>;
    /// An encoded `ProfileBody`; `None` for one that no key has any more.
    fn profile(&self, id: u32) -> Option<Bytes>;
    /// The revision of the last change of the blocked list, and the list.
    fn blocked(&self) -> (u64, &[Owner]);
}

/// Where an Envoy stands, from its Hello, and the sizes of its shared data, from its Hello or the Welcome it got.
#[derive(Clone, Copy, Debug)]
pub struct HelloFacts {
    pub era: u64,
    pub key_revision: u64,
    /// The boot had its first `ResyncEnd`.
    pub complete: bool,
    /// Buckets of this boot, a power of two.
    pub buckets: u32,
    /// Places for profiles in this boot.
    pub profiles: u32,
}

/// The store's revision counter and its clock, read in one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockReading {
    pub era: u64,
    pub revision: u64,
    pub now_unix_ns: i64,
}

/// What a stream has to say.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// This, before [`Feed::next`] is called again.
    Send(SyncDown),
    /// Nothing, until there is a newer view or a tick.
    Idle,
    /// The view is of another era than the stream: to be closed, so that the Envoy says Hello again.
    NewEra,
}

/// One stream's place in what it has to send.
#[derive(Debug)]
pub struct Feed {
    hello: HelloFacts,
    phase: Phase,
    /// Buckets that changed and are to be sent before anything else of the keys.
    changed: BTreeSet<u32>,
    blocked: BlockedSent,
    /// By place, the profile that this stream sent last; 0: none.
    profiles: Vec<u32>,
    /// The last tick, until a mark or an end carried it.
    tick: Option<ClockReading>,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Until a view is as far as the Envoy.
    Waiting,
    /// `seen`: up to where changes are sent or in `changed`.
    Resync { era: u64, floor: u64, seen: u64, cursor: Option<u32> },
    /// `marked`: where the last mark or end left the Envoy.
    Live { era: u64, marked: u64, seen: u64 },
}

/// How much of the blocked list went out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum BlockedSent {
    Nothing,
    Parts { revision: u64, parts: u32 },
    Whole { revision: u64 },
}

impl Feed {
    pub fn new(hello: HelloFacts) -> Self {
        Self {
            hello,
            phase: Phase::Waiting,
            changed: BTreeSet::new(),
            blocked: BlockedSent::Nothing,
            profiles: vec![0; hello.profiles as usize],
            tick: None,
        }
    }

    /// Asks for a mark: every second, and as soon as wanted after a change. It goes out behind what a view at the reading's
    /// revision still has to send; a resync's end takes the last one.
    pub fn tick(&mut self, reading: ClockReading) {
        self.tick = Some(reading);
    }

    /// Whether every bucket is being sent, rather than what changed.
    pub fn resyncing(&self) -> bool {
        matches!(self.phase, Phase::Resync { .. })
    }

    /// The next message, read from `view`: the newest one, and never an older one than before.
    pub fn next(&mut self, view: &impl View) -> Next {
        match self.follow(view) {
            Followed::NotYet => Next::Idle,
            Followed::NewEra => Next::NewEra,
            Followed::Ready => {
                let m = self.blocked_part(view).or_else(|| self.keys(view)).or_else(|| self.settle());
                m.map_or(Next::Idle, |m| Next::Send(SyncDown { m: Some(m) }))
            }
        }
    }

    /// Takes in what changed since the last view.
    fn follow(&mut self, view: &impl View) -> Followed {
        let (era, seen) = match self.phase {
            Phase::Waiting => return self.begin(view),
            Phase::Resync { era, seen, .. } | Phase::Live { era, seen, .. } => (era, seen),
        };
        if view.era() != era {
            return Followed::NewEra;
        }
        if view.revision() < seen {
            return Followed::NotYet;
        }
        if view.revision() > seen {
            match view.changed_since(seen) {
                Some(prefixes) => self.note_changes(prefixes, view.revision()),
                // More changed than the log holds: this stream was too slow.
                None => self.resync(view),
            }
        }
        Followed::Ready
    }

    fn begin(&mut self, view: &impl View) -> Followed {
        let HelloFacts { era, key_revision, complete, .. } = self.hello;
        if (view.era(), view.revision()) < (era, key_revision) {
            return Followed::NotYet;
        }
        let changes = if view.era() == era && complete { view.changed_since(key_revision) } else { None };
        match changes {
            Some(prefixes) => {
                self.phase = Phase::Live { era, marked: key_revision, seen: key_revision };
                self.note_changes(prefixes, view.revision());
            }
            None => self.resync(view),
        }
        Followed::Ready
    }

    fn resync(&mut self, view: &impl View) {
        self.changed.clear();
        let now = view.revision();
        self.phase = Phase::Resync { era: view.era(), floor: now, seen: now, cursor: Some(0) };
    }

    fn note_changes(&mut self, prefixes: Vec<u32>, to: u64) {
        self.changed.extend(prefixes.into_iter().map(|prefix| bucket_of_prefix(prefix, self.hello.buckets)));
        if let Phase::Resync { seen, .. } | Phase::Live { seen, .. } = &mut self.phase {
            *seen = to;
        }
    }

    /// The next part of a blocked list that the Envoy does not have: before any key, because a key may be newer than the
    /// block of its owner.
    fn blocked_part(&mut self, view: &impl View) -> Option<M> {
        let (revision, owners) = view.blocked();
        let index = match self.blocked {
            BlockedSent::Whole { revision: sent } if sent == revision => return None,
            BlockedSent::Parts { revision: sent, parts } if sent == revision => parts,
            _ => 0,
        };
        let count = owners.len().div_ceil(OWNERS_PER_PART).max(1) as u32;
        self.blocked = match index + 1 {
            parts if parts < count => BlockedSent::Parts { revision, parts },
            _ => BlockedSent::Whole { revision },
        };
        let part = owners.iter().skip(index as usize * OWNERS_PER_PART).take(OWNERS_PER_PART);
        let owners = part.map(|owner| owner.to_wire()).collect();
        Some(M::Blocked(Blocked { era: view.era(), revision, index, count, owners }))
    }

    /// The next buckets, or first the profiles that they name.
    fn keys(&mut self, view: &impl View) -> Option<M> {
        let batch = match self.phase {
            _ if !self.changed.is_empty() => Batch::read(view, self.hello.buckets, self.changed.iter().copied()),
            Phase::Resync { cursor: Some(from), .. } => {
                Batch::read(view, self.hello.buckets, occupied(view, from, self.hello.buckets))
            }
            _ => return None,
        };
        if let Some(profiles) = self.profiles_of(&batch, view) {
            return Some(M::Profiles(profiles));
        }
        if self.changed.is_empty() {
            let next = batch.keys.buckets.last().and_then(|bucket| bucket.index.checked_add(1));
            if let Phase::Resync { cursor, .. } = &mut self.phase {
                *cursor = next;
            }
        } else {
            for bucket in &batch.keys.buckets {
                self.changed.remove(&bucket.index);
            }
        }
        (!batch.keys.buckets.is_empty()).then_some(M::Keys(batch.keys))
    }

    /// Those that a batch names and this stream did not send, as many as one message takes.
    fn profiles_of(&mut self, batch: &Batch, view: &impl View) -> Option<Profiles> {
        let mut size = MESSAGE_OVERHEAD;
        let mut profiles = Vec::new();
        for &id in &batch.profiles {
            let places = self.profiles.len();
            let Some(place) = (id as usize).checked_rem(places).and_then(|at| self.profiles.get_mut(at)) else {
                continue;
            };
            if *place == id {
                continue;
            }
            let Some(body) = view.profile(id) else { continue };
            let profile = Profile { id, body };
            size += profile.encoded_len() + ENTRY_OVERHEAD;
            if size > MAX_MESSAGE_BYTES && !profiles.is_empty() {
                break;
            }
            *place = id;
            profiles.push(profile);
        }
        (!profiles.is_empty()).then(|| Profiles { era: view.era(), profiles })
    }

    /// Says how far the Envoy now is, once everything up to there is sent and a clock reading is not ahead of it.
    fn settle(&mut self) -> Option<M> {
        let reading = self.tick?;
        match self.phase {
            Phase::Live { era, marked, seen } if reading.era == era && reading.revision <= seen => {
                self.tick = None;
                self.phase = Phase::Live { era, marked: seen, seen };
                Some(M::Mark(Mark { era, from: marked, to: seen, now_unix_ns: reading.now_unix_ns }))
            }
            Phase::Resync { era, floor, seen, cursor: None } if reading.era == era && reading.revision <= seen => {
                self.tick = None;
                self.phase = Phase::Live { era, marked: seen, seen };
                Some(M::ResyncEnd(ResyncEnd { era, floor, to: seen, now_unix_ns: reading.now_unix_ns }))
            }
            _ => None,
        }
    }
}

enum Followed {
    Ready,
    NotYet,
    NewEra,
}

/// Buckets for one message, and the profiles that they name.
struct Batch {
    keys: Keys,
    profiles: BTreeSet<u32>,
}

impl Batch {
    fn read(view: &impl View, count: u32, indices: impl Iterator<Item = u32>) -> Self {
        let mut batch = Self { keys: Keys { era: view.era(), buckets: Vec::new() }, profiles: BTreeSet::new() };
        let mut size = MESSAGE_OVERHEAD;
        for index in indices {
            let records = view.bucket(index, count);
            let encoded: Vec<u8> = records.iter().flat_map(KeyRecord::encode).collect();
            let bucket = Bucket { index, revision: view.revision(), records: encoded.into() };
            size += bucket.encoded_len() + ENTRY_OVERHEAD;
            if size > MAX_MESSAGE_BYTES && !batch.keys.buckets.is_empty() {
                break;
            }
            batch.profiles.extend(records.iter().map(|record| record.profile));
            batch.keys.buckets.push(bucket);
        }
        batch
    }
}

/// The buckets at or after `from` that have records.
fn occupied(view: &impl View, from: u32, count: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(view.next_occupied(from, count), move |&last| view.next_occupied(last.checked_add(1)?, count))
}

#[cfg(test)]
mod tests;
