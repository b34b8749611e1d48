//! From a known key to an admitted request.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use super::coding::{Coding, CodingFault, Decoder, Progress};
use super::{Exchange, Head, Mono, Ticket, Turned, label};
use crate::dialect::openai::{Operation, request};
use crate::json::Scanner;
use crate::noun::OwnerKind;
use crate::policy::Policy;
use crate::refusal::Refusal;
use crate::state::{CompiledProfile, KeyRecord, Lookup};

/// Whose request it is: ids from the key's record, 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub org: u32,
    pub team: u32,
    pub user: u32,
    pub key: u32,
}

impl Identity {
    /// Judges what shared data says about a key: its state, its expiry, and whether `client` is in its networks. The
    /// address is asked for only where a network is demanded.
    ///
    /// # Errors
    /// The refusal, with the identity where the key is known, so that it can be booked to its owner.
    pub fn judge(
        lookup: Lookup,
        client: impl FnOnce() -> Option<IpAddr>,
    ) -> Result<(Self, Rc<CompiledProfile>), (Refusal, Self)> {
        let nobody = |refusal| Err((refusal, Self::default()));
        let (record, profile, expired) = match lookup {
            Lookup::Known { record, profile, expired } => (record, profile, expired),
            Lookup::Unknown => return nobody(Refusal::UnknownKey),
            Lookup::NotReady => return nobody(Refusal::NotReady),
            Lookup::StateTooOld => return nobody(Refusal::StateTooOld),
            Lookup::Blocked { record, owner } => {
                let owner = match owner {
                    OwnerKind::Org => "organization",
                    OwnerKind::Team => "team",
                    OwnerKind::User => "user",
                    OwnerKind::Key => "key",
                };
                return Err((Refusal::OwnerBlocked { owner }, Self::of(&record)));
            }
        };
        let identity = Self::of(&record);
        if record.disabled() {
            return Err((Refusal::DisabledKey, identity));
        }
        if expired {
            return Err((Refusal::ExpiredKey, identity));
        }
        // An address that cannot be told is in no network.
        if !profile.any_address() && !client().is_some_and(|ip| profile.allows_address(ip)) {
            return Err((Refusal::NetworkNotAllowed, identity));
        }
        Ok((identity, profile))
    }

    fn of(record: &KeyRecord) -> Self {
        Self { org: record.org, team: record.team, user: record.user, key: record.key }
    }
}

/// A request whose body is coming in.
#[derive(Debug)]
pub struct Reading {
    pub ticket: Ticket,
    operation: Operation,
    path: String,
    private: Vec<String>,
    scanner: Scanner,
    /// What the body is to go through, where it does not come as it is.
    decoder: Option<Box<Decoder>>,
    /// How much of the body has gone into it.
    fed: u64,
    /// Bytes that came.
    received: u64,
    /// Bytes of the body as it goes on: the same, but for a coding.
    body_bytes: u64,
    limit: u64,
}

/// What admission needs of the moment it happens in.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub now: Mono,
    /// Control-plane time, ns since 1970.
    pub now_ns: i64,
    /// Uniform over `u64`: draws the list.
    pub random: u64,
}

impl Reading {
    /// Begins to read the body of a metered request; `limit` is the largest in bytes.
    ///
    /// # Errors
    /// A body that is announced too large, or in a coding that is not known.
    pub fn new(ticket: Ticket, head: Head, operation: Operation, limit: u64) -> Result<Self, Box<Turned>> {
        let coding = match head.content_encoding {
            None => None,
            Some(encoding) => match Coding::named(&encoding) {
                None => return Err(ticket.turned_away(Refusal::UnsupportedEncoding { encoding })),
                known => known,
            },
        };
        if head.content_length.is_some_and(|length| length > limit) {
            return Err(ticket.turned_away(Refusal::BodyTooLarge { limit: Some(limit) }));
        }
        let decoder = coding.map(|coding| Box::new(Decoder::new(coding, limit)));
        let scanner = request::scanner(operation);
        let Head { path, private, .. } = head;
        Ok(Self { ticket, operation, path, private, scanner, decoder, fed: 0, received: 0, body_bytes: 0, limit })
    }

    /// How many bytes have come so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The next bytes of the body.
    ///
    /// # Errors
    /// As soon as it is clear that the body is too large, or no JSON object.
    pub fn push(&mut self, window: &[u8]) -> Result<(), Refusal> {
        self.received = self.received.saturating_add(window.len() as u64);
        if self.received > self.limit {
            return Err(Refusal::BodyTooLarge { limit: Some(self.limit) });
        }
        if self.is_encoded() { Ok(()) } else { self.scan(window) }
    }

    /// Whether the body, now whole, has to go through [`Self::decode`] before admission.
    pub fn is_encoded(&self) -> bool {
        self.decoder.is_some()
    }

    /// One small step of decoding the whole body; at the end what it decodes to, which is to stand in its place. `piece` gives
    /// the body's bytes from an offset on, at most so many.
    ///
    /// # Errors
    /// A body that decodes to too much, that is broken, or that is no JSON object.
    pub fn decode(&mut self, mut piece: impl FnMut(u64, usize) -> Vec<u8>) -> Result<Option<Vec<u8>>, Refusal> {
        let Some(mut decoder) = self.decoder.take() else { return Ok(Some(Vec::new())) };
        let (coding, limit) = (decoder.coding(), self.limit);
        let (decoded, mut fed) = (decoder.out().len(), self.fed);
        let step = decoder.step(&mut |most| {
            let bytes = piece(fed, most);
            fed = fed.saturating_add(bytes.len() as u64);
            bytes
        });
        self.fed = fed;
        let progress = step.map_err(|fault| match fault {
            CodingFault::TooLarge => Refusal::BodyTooLarge { limit: Some(limit) },
            CodingFault::Window => {
                Refusal::UnsupportedEncoding { encoding: "zstd with a window over 8 MiB".to_owned() }
            }
            CodingFault::Broken => Refusal::BrokenEncoding { encoding: coding.name() },
        })?;
        self.scan(decoder.out().get(decoded..).unwrap_or_default())?;
        match progress {
            Progress::Whole => Ok(Some(decoder.into_out())),
            Progress::More => {
                self.decoder = Some(decoder);
                Ok(None)
            }
        }
    }

    fn scan(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.body_bytes = self.body_bytes.saturating_add(bytes.len() as u64);
        self.scanner.push(bytes).map_err(request::refusal)
    }

    /// The body is whole: admits the request of somebody who may do what `profile` says, or says why not.
    ///
    /// # Errors
    /// Bad fields, a model that does not exist or that may not be used.
    pub fn admit(
        mut self,
        profile: &CompiledProfile,
        policy: &Rc<Policy>,
        moment: Moment,
    ) -> Result<Exchange, Box<Turned>> {
        let fields = match self.scanner.finish().map_err(request::refusal).and_then(|s| request::read(&s)) {
            Ok(fields) => fields,
            Err(refusal) => return Err(self.ticket.turned_away(refusal)),
        };
        let requested = label(fields.model.as_bytes());
        self.ticket.requested_model.clone_from(&requested);
        let Some(model) = policy.model(&fields.model) else {
            return Err(self.ticket.turned_away(Refusal::UnknownModel { model: requested }));
        };
        if !profile.allows_model(model.id) {
            return Err(self.ticket.turned_away(Refusal::ModelNotAllowed { model: requested }));
        }
        let list = model.draw(moment.random);
        Ok(Exchange {
            ticket: self.ticket,
            operation: self.operation,
            policy: Rc::clone(policy),
            model: model.id,
            cluster: list.cluster.clone(),
            positions: list.positions.clone(),
            admitted: moment.now,
            admitted_ns: moment.now_ns,
            fields,
            path: self.path,
            body_bytes: self.body_bytes,
            private: self.private,
            attempts: Vec::new(),
            refusal: None,
        })
    }
}

impl Exchange {
    /// In an Envoy whose clusters are somebody else's, a list is its first position: goes there by the one of `clusters`
    /// (theirs, by provider) that reaches its provider.
    ///
    /// # Errors
    /// When none does.
    pub fn attach(&mut self, clusters: &BTreeMap<String, String>) -> Result<(), Refusal> {
        self.positions.truncate(1);
        let backend = self.positions.first().and_then(|p| self.policy.backend(p.backend));
        let Some(cluster) = backend.and_then(|backend| clusters.get(&backend.provider)) else {
            return Err(Refusal::Misconfigured { option: "a cluster for this model's provider" });
        };
        self.cluster.clone_from(cluster);
        Ok(())
    }
}
