//! The receiving side of one Sync stream.

use super::boot::{Boot, Sizes};
use super::policy_parts::MAX_POLICY_BYTES;
use super::rule::{self, Rule};
use super::store::{SharedData, StoreFault};
use super::{Head, Stamp, Times, blocked, bucket, credential, policy_parts, profile, record};
use crate::noun::Owner;
use crate::proto::dataplane as wire;
use crate::proto::dataplane::sync_down::M;

/// What a message asks of the shell.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// This stream is of no more use: close it and say Hello on a new one.
    Reopen { reason: &'static str },
    /// A policy is whole. Compile it, then call [`Session::keep_policy`] or nothing, and send the verdict either way.
    Policy { stamp: Stamp, snapshot: Vec<u8> },
    /// A resync has ended: say how things stand.
    Complete,
}

/// One stream, from its Hello to its end. What it gathers is its own: another stream's parts are never mixed in.
#[derive(Debug, Default)]
pub struct Session {
    policy: Gathering<Vec<u8>>,
    blocked: Gathering<Vec<Owner>>,
}

/// Parts of one thing, until all are there.
#[derive(Debug)]
struct Gathering<T> {
    stamp: Stamp,
    parts: Vec<Option<T>>,
}

impl<T> Default for Gathering<T> {
    fn default() -> Self {
        Self { stamp: Stamp::ZERO, parts: Vec::new() }
    }
}

/// What no policy and no list needs more of.
const MAX_PARTS: u32 = 128;

impl Session {
    /// The first message of the stream of `subscriber` with its `epoch`.
    pub fn hello<S: SharedData>(
        store: &S,
        boot: &Boot,
        subscriber: super::subscriber::Held,
        identity: Identity<'_>,
        standing: wire::Standing,
    ) -> Result<wire::Hello, StoreFault> {
        let head = Head::read(store)?;
        Ok(wire::Hello {
            node: identity.node.to_owned(),
            boot: boot.id,
            subscriber: subscriber.subscriber,
            epoch: subscriber.epoch,
            layout: u32::from(super::LAYOUT),
            filter_version: identity.filter_version.to_owned(),
            envoy_version: identity.envoy_version.to_owned(),
            buckets: boot.sizes.map_or(0, |s| s.buckets),
            standing: Some(wire::Standing {
                era: head.keys.era,
                key_revision: head.keys.revision,
                ready: head.complete,
                ..standing
            }),
        })
    }

    /// Applies one message. `sizes` are the boot's, `None` before its first Welcome.
    ///
    /// # Errors
    /// When the store fails in the middle: what was written stays, the rest comes again with the next Hello.
    pub fn apply<S: SharedData>(
        &mut self,
        store: &S,
        sizes: Option<Sizes>,
        message: wire::SyncDown,
        now: Times,
    ) -> Result<Option<Effect>, StoreFault> {
        let Some(message) = message.m else { return Ok(None) };
        if let M::Welcome(welcome) = message {
            return welcome_in(store, &welcome);
        }
        let Some(sizes) = sizes else { return Ok(reopen("something came before the first welcome")) };
        match message {
            M::Welcome(_) => Ok(None),
            M::Mark(mark) => apply_mark(store, &mark, now),
            M::Keys(keys) => apply_keys(store, sizes, &keys),
            M::ResyncEnd(end) => apply_end(store, &end, now),
            M::Blocked(part) => self.apply_blocked(store, part),
            M::Profiles(profiles) => apply_profiles(store, sizes, &profiles).map(|()| None),
            M::Credential(c) => apply_credential(store, sizes, &c),
            M::Policy(part) => Ok(self.gather_policy(part, sizes)),
        }
    }

    /// Applies what an answer on Flow brings, as if Sync had brought it: it loses to what is newer, and moves no mark.
    ///
    /// # Errors
    /// When the store fails.
    pub fn apply_found<S: SharedData>(store: &S, sizes: Sizes, found: wire::Found) -> Result<(), StoreFault> {
        let wire::Found { era, profiles, bucket } = found;
        apply_profiles(store, sizes, &wire::Profiles { era, profiles })?;
        // A bucket that is none is the answer's fault, not this boot's: the identity stays unknown.
        apply_keys(store, sizes, &wire::Keys { era, buckets: bucket.into_iter().collect() }).map(drop)
    }

    /// The policy compiles: writes it for VMs to come, and lets the present ones know.
    pub fn keep_policy<S: SharedData>(store: &S, stamp: Stamp, snapshot: &[u8]) -> Result<(), StoreFault> {
        const PART: usize = 60_000;
        let parts: Vec<&[u8]> = if snapshot.is_empty() { vec![b""] } else { snapshot.chunks(PART).collect() };
        policy_parts::apply(store, stamp, &parts)
    }

    fn gather_policy(&mut self, part: wire::PolicyPart, sizes: Sizes) -> Option<Effect> {
        let stamp = Stamp::new(part.era, part.revision);
        if part.count > sizes.policy_parts {
            return Some(Effect::Reopen { reason: "the policy has more parts than this boot has room for" });
        }
        let parts = self.policy.add(stamp, part.index, part.count, part.part.to_vec())?;
        let snapshot = parts.concat();
        if snapshot.len() > MAX_POLICY_BYTES {
            return Some(Effect::Reopen { reason: "the policy is larger than 4 MiB" });
        }
        Some(Effect::Policy { stamp, snapshot })
    }

    /// The whole list in one write, head after it.
    fn apply_blocked<S: SharedData>(&mut self, store: &S, part: wire::Blocked) -> Result<Option<Effect>, StoreFault> {
        let stamp = Stamp::new(part.era, part.revision);
        // An owner of a kind this build does not know is none that it could meet.
        let owners = part.owners.iter().filter_map(Owner::from_wire).collect();
        let Some(parts) = self.blocked.add(stamp, part.index, part.count, owners) else { return Ok(None) };
        let listed = parts.concat();
        if listed.len() > blocked::MAX_BLOCKED {
            return Ok(reopen("the list of blocked owners is too long"));
        }
        let reached = Head::read(store)?.keys;
        blocked::Blocked::apply(store, stamp, listed, reached)?;
        // The entry may hold a newer list than this one: head says what is there.
        let there = blocked::Blocked::read(store)?.stamp;
        Head::raise(store, |head| head.blocked = there)?;
        // Keys that follow this list are of a time between what is announced and the list that is here. That one says
        // nothing of who was blocked then, and came first, so those have not become leaving owners.
        if reached < stamp && stamp < there && rule::on(Rule::S10Behind) {
            return Ok(reopen("a newer list of blocked owners is here"));
        }
        Ok(None)
    }
}

/// What a Hello says of the process.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub node: &'a str,
    pub filter_version: &'a str,
    pub envoy_version: &'a str,
}

impl<T> Gathering<T> {
    /// Adds a part; returns all of them when it was the last one missing. A part of a newer stamp begins anew, one of an
    /// older stamp is late.
    fn add(&mut self, stamp: Stamp, index: u32, count: u32, part: T) -> Option<Vec<T>> {
        if count == 0 || count > MAX_PARTS || index >= count || stamp < self.stamp {
            return None;
        }
        if stamp > self.stamp || self.parts.len() != count as usize {
            self.stamp = stamp;
            self.parts = (0..count).map(|_| None).collect();
        }
        *self.parts.get_mut(index as usize)? = Some(part);
        if self.parts.iter().any(Option::is_none) {
            return None;
        }
        Some(std::mem::take(&mut self.parts).into_iter().flatten().collect())
    }
}

fn reopen(reason: &'static str) -> Option<Effect> {
    Some(Effect::Reopen { reason })
}

fn welcome_in<S: SharedData>(store: &S, welcome: &wire::Welcome) -> Result<Option<Effect>, StoreFault> {
    let Some(sizes) = Sizes::from_welcome(welcome) else {
        return Ok(reopen("the welcome's counts make no sense"));
    };
    match Boot::fix(store, sizes)? {
        Some(Boot { sizes: Some(fixed), .. }) if fixed.buckets == sizes.buckets => Ok(None),
        _ => Ok(reopen("the welcome's bucket count is not this boot's")),
    }
}

/// Everything in (from, to] has come. Only what joins on to what is here moves it.
fn apply_mark<S: SharedData>(store: &S, mark: &wire::Mark, now: Times) -> Result<Option<Effect>, StoreFault> {
    let head = Head::read(store)?;
    if mark.era != head.keys.era || mark.from > head.keys.revision {
        return Ok(reopen("a mark does not join on"));
    }
    confirm(store, Stamp::new(mark.era, mark.to), mark.now_unix_ns, now, |_| {})?;
    Ok(None)
}

fn apply_end<S: SharedData>(store: &S, end: &wire::ResyncEnd, now: Times) -> Result<Option<Effect>, StoreFault> {
    confirm(store, Stamp::new(end.era, end.to), end.now_unix_ns, now, |head| {
        head.floor = head.floor.max(Stamp::new(end.era, end.floor));
        head.complete = true;
    })?;
    Ok(Some(Effect::Complete))
}

fn confirm<S: SharedData>(
    store: &S,
    reached: Stamp,
    now_unix_ns: i64,
    now: Times,
    also: impl Fn(&mut Head),
) -> Result<(), StoreFault> {
    Head::raise(store, |head| {
        // A mark of another era than head's by now is one that lost a race: it confirms nothing.
        if reached.era < head.keys.era {
            return;
        }
        head.keys = head.keys.max(reached);
        head.confirmed = now;
        head.clock = now_unix_ns.saturating_sub(i64::try_from(now.mono).unwrap_or(i64::MAX));
        also(head);
    })
}

fn apply_profiles<S: SharedData>(store: &S, sizes: Sizes, profiles: &wire::Profiles) -> Result<(), StoreFault> {
    for p in &profiles.profiles {
        profile::apply(store, sizes.profiles, profiles.era, p.id, &p.body)?;
    }
    Ok(())
}

fn apply_keys<S: SharedData>(store: &S, sizes: Sizes, keys: &wire::Keys) -> Result<Option<Effect>, StoreFault> {
    for b in &keys.buckets {
        if b.index >= sizes.buckets || !record::is_sorted(&b.records) {
            return Ok(reopen("a bucket is none"));
        }
        bucket::apply(store, b.index, Stamp::new(keys.era, b.revision), &b.records)?;
    }
    Ok(None)
}

fn apply_credential<S: SharedData>(
    store: &S,
    sizes: Sizes,
    c: &wire::Credential,
) -> Result<Option<Effect>, StoreFault> {
    let stamp = Stamp::new(c.era, c.revision);
    if credential::apply(store, sizes.credentials, c.id, stamp, &c.sealed)? {
        Head::raise(store, |head| head.credentials = head.credentials.saturating_add(1))?;
    }
    Ok(None)
}
