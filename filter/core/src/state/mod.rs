//! What an Envoy's shared data holds, and how the control plane's messages get into it.
//!
//! Shared data offers get, set and compare-and-set, to every VM of the process; it can neither delete nor list. So there is
//! a fixed set of numbered entries that are overwritten, each with its id and stamp in the value. A stamp is (era,
//! revision); a write loses to a higher stamp, so messages may come doubled, late, from a zombie or from a replica that
//! lags, through two subscribers at once. `docs/dataplane.md` tells the whole protocol.
//!
//! | entry | what | module |
//! |---|---|---|
//! | boot | the process's random identity and the entries' counts | [`boot`] |
//! | sub0, sub1 | which VM holds which Sync stream | [`subscriber`] |
//! | seats | the living VMs | [`seat`] |
//! | head | how far everything has come; read by every request | [`head`] |
//! | buckets | the keys | [`bucket`], [`record`] |
//! | profiles | what keys may do | [`profile`] |
//! | blocked | blocked owners | [`blocked`] |
//! | credentials | providers' credentials, sealed | [`credential`] |
//! | parts | the policy | [`policy_parts`] |
//!
//! [`session`] applies one Sync stream, [`lookup`] reads for requests, [`feed`] is the control plane's side of a stream.

pub mod blocked;
pub mod boot;
pub mod bucket;
mod bytes;
pub mod credential;
pub mod feed;
pub mod head;
pub mod lookup;
#[cfg(test)]
mod model_test;
pub mod policy_parts;
pub mod profile;
pub mod record;
#[cfg(test)]
mod reference;
mod rule;
pub mod seat;
pub mod session;
pub mod store;
pub mod subscriber;

pub use boot::Boot;
pub use head::Head;
pub use lookup::{Lookup, Reader};
pub use profile::CompiledProfile;
pub use record::KeyRecord;
pub use session::{Effect, Session};
pub use store::{Cas, SharedData, StoreFault};

/// Of the entries' form; a value of another layout reads as absent.
pub const LAYOUT: u8 = 1;

/// When something was true: an era of the database and a revision in it, compared as a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp {
    pub era: u64,
    pub revision: u64,
}

impl Stamp {
    /// Before everything.
    pub const ZERO: Self = Self { era: 0, revision: 0 };

    pub fn new(era: u64, revision: u64) -> Self {
        Self { era, revision }
    }
}

/// The moment of a callback, on both clocks of the host, in ns. Monotonic time stands still while a machine sleeps, wall
/// time can be set: ages are the larger of the two differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub mono: u64,
    pub wall: u64,
}

impl Times {
    /// How long ago `earlier` was, in ns.
    pub fn since(self, earlier: Self) -> u64 {
        self.mono.saturating_sub(earlier.mono).max(self.wall.saturating_sub(earlier.wall))
    }
}
