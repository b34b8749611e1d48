//! Who asks: the holder of a key, or of a token (JWT) that Envoy's own filter has verified.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use sluicegate_core::exchange::token::Presented;
use sluicegate_core::exchange::{Awaited, Head, Identity, Ticket};
use sluicegate_core::policy::names;
use sluicegate_core::refusal::Refusal;
use sluicegate_core::state::{CompiledProfile, Lookup};

use crate::host::{self, Headers};
use crate::vm::Shared;

/// How far it is known who asks.
#[derive(Debug)]
pub enum Caller {
    /// Known, and may ask.
    Known(Rc<CompiledProfile>),
    /// The holder of a token of this issuer (`iss`). Without a policy nothing says what to read in it.
    Token(String),
    /// Not known here; the control plane is asked.
    Asked(Box<Presented>),
}

impl Caller {
    /// From what came in the headers.
    pub fn find(head: &Head, context: u32, ticket: &mut Ticket, shared: &mut Shared) -> Result<Self, Refusal> {
        let key = match &head.key {
            Ok(key) => key,
            Err(Refusal::MissingKey) => {
                let Some(iss) = claim(&["iss".to_owned()]).pop() else { return Err(no_token(head, shared)) };
                return Self::Token(iss).settle(context, ticket, shared);
            }
            Err(refusal) => return Err(refusal.clone()),
        };
        let lookup = shared.lookup(key, ticket.started);
        judge(lookup, ticket).map(Self::Known)
    }

    /// Goes on from where it stands, as far as it can now.
    pub fn settle(self, context: u32, ticket: &mut Ticket, shared: &mut Shared) -> Result<Self, Refusal> {
        let presented = match self {
            Self::Known(_) => return Ok(self),
            Self::Asked(presented) => presented,
            Self::Token(iss) => {
                let Some(policy) = &shared.policy else { return Ok(Self::Token(iss)) };
                // Envoy learns of issuers by another channel: this one's rules are still on their way.
                let issuer = policy.issuer(&iss).ok_or(Refusal::NotReady)?;
                Box::new(Presented::read(issuer, claim)?)
            }
        };
        let now = host::now();
        match shared.lookup(&presented.hash, now) {
            // A state that cannot tell is no reason to wait for one that can: the question goes past it.
            Lookup::Unknown | Lookup::NotReady => {}
            known => return judge(known, ticket).map(Self::Known),
        }
        shared.flow.ask(context, &presented, now)?;
        Ok(Self::Asked(presented))
    }

    /// What it waits for; `None` for nothing.
    pub fn awaits(&self) -> Option<Awaited> {
        match self {
            Self::Known(_) => None,
            Self::Token(_) => Some(Awaited::Policy),
            Self::Asked(presented) => Some(Awaited::Identity(presented.hash)),
        }
    }
}

fn judge(lookup: Lookup, ticket: &mut Ticket) -> Result<Rc<CompiledProfile>, Refusal> {
    match Identity::judge(lookup, client_address) {
        Ok((identity, profile)) => {
            ticket.identity = identity;
            Ok(profile)
        }
        Err((refusal, identity)) => {
            ticket.identity = identity;
            Err(refusal)
        }
    }
}

/// The texts at a path of the verified token's payload.
fn claim(path: &[String]) -> Vec<String> {
    let mut property = vec!["metadata", "filter_metadata", names::JWT_FILTER, names::JWT_PAYLOAD];
    property.extend(path.iter().map(String::as_str));
    let Ok(Some(value)) = host::property(&property) else { return Vec::new() };
    texts(value)
}

/// A text stands as it is; a list of texts as the names of a header map, which begins with a NUL within its first bytes, as
/// no text does that is taken for one.
fn texts(value: Vec<u8>) -> Vec<String> {
    if value.iter().take(4).any(|byte| *byte == 0) {
        let names = Headers(value);
        return names.iter().filter_map(|(name, _)| String::from_utf8(name.to_vec()).ok()).collect();
    }
    String::from_utf8(value).into_iter().collect()
}

/// No key, and no verified token: says which of the two is missing, as far as Envoy's filter tells.
fn no_token(head: &Head, shared: &Shared) -> Refusal {
    if !head.unverified_token {
        return Refusal::MissingKey;
    }
    let issuers = shared.policy.iter().flat_map(|policy| policy.issuers());
    // Of every issuer but its own a token is told that it is not theirs.
    match issuers.filter_map(|issuer| failure(issuer.id)).find(|message| !message.starts_with("Jwt issuer")) {
        None => Refusal::InvalidToken { reason: "no issuer of this gateway has signed it".to_owned() },
        // Of the issuer's keys, the JWK set.
        Some(message) if message.starts_with("Jwks") && message.contains("fetch") => Refusal::IssuerUnavailable,
        Some(message) => Refusal::InvalidToken { reason: message },
    }
}

/// What an issuer's rules say against the token, in the words of Envoy's filter.
fn failure(issuer: u32) -> Option<String> {
    let name = names::jwt_failure(issuer);
    let path = ["metadata", "filter_metadata", names::JWT_FILTER, &name, "message"];
    String::from_utf8(host::property(&path).ok()??).ok()
}

/// The client's address, as far as Envoy trusts those before it.
fn client_address() -> Option<IpAddr> {
    let address = host::property(&["source", "address"]).ok()??;
    let address: SocketAddr = std::str::from_utf8(&address).ok()?.parse().ok()?;
    Some(address.ip())
}
