//! What a key may do, interned: many keys share one profile.

use std::net::IpAddr;

use ipnet::IpNet;
use prost::Message;

use super::bytes::{Fields, Writer};
use super::rule::{self, Rule};
use super::store::{SharedData, StoreFault, keys, update};
use crate::proto::dataplane as wire;

/// A profile as it stands in its entry, `id` mod the boot's count of profiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: u32,
    /// The first and last era in which the id was seen with this very body. A restored database can give an id again.
    pub eras: (u64, u64),
    pub body: Vec<u8>,
}

/// A profile, compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompiledProfile {
    any_model: bool,
    /// Sorted ids, where not any.
    models: Vec<u32>,
    /// Empty: from anywhere.
    networks: Vec<IpNet>,
}

impl Entry {
    pub fn read<S: SharedData>(store: &S, id: u32, count: u32) -> Result<Option<Self>, StoreFault> {
        let key = keys::profile(id.checked_rem(count).unwrap_or(0));
        let entry = store.get(&key)?.and_then(|(value, _)| Self::decode(&value));
        Ok(entry.filter(|e| e.id == id || !rule::on(Rule::S11)))
    }

    /// Whether it is the profile that a record of a bucket of `era` means.
    pub fn is_of(&self, era: u64) -> bool {
        self.eras.0 <= era && era <= self.eras.1
    }

    fn encode(&self) -> Vec<u8> {
        Writer::new(20 + self.body.len()).u32(self.id).u64(self.eras.0).u64(self.eras.1).bytes(&self.body)
    }

    fn decode(value: &[u8]) -> Option<Self> {
        let mut f = Fields::new(value)?;
        Some(Self { id: f.u32()?, eras: (f.u64()?, f.u64()?), body: f.rest().to_vec() })
    }
}

/// Writes a profile. An id's body never changes within an era, and ids rise, so the higher (era, id) wins.
pub fn apply<S: SharedData>(store: &S, count: u32, era: u64, id: u32, body: &[u8]) -> Result<(), StoreFault> {
    let key = keys::profile(id.checked_rem(count).unwrap_or(0));
    update(store, &key, |value| {
        let fresh = Entry { id, eras: (era, era), body: body.to_vec() };
        let Some(old) = value.and_then(Entry::decode) else { return Some(fresh.encode()) };
        if old.id == id && old.body == body {
            let eras = (old.eras.0.min(era), old.eras.1.max(era));
            return (eras != old.eras).then(|| Entry { eras, ..fresh }.encode());
        }
        ((era, id) > (old.eras.1, old.id)).then(|| fresh.encode())
    })?;
    Ok(())
}

impl CompiledProfile {
    /// `None` where the body is not one: the keys that name it cannot be judged.
    pub fn compile(body: &[u8]) -> Option<Self> {
        let body = wire::ProfileBody::decode(body).ok()?;
        let mut models = body.models;
        models.sort_unstable();
        let networks = body.networks.iter().map(network).collect::<Option<_>>()?;
        Some(Self { any_model: body.any_model, models, networks })
    }

    pub fn allows_model(&self, id: u32) -> bool {
        self.any_model || self.models.binary_search(&id).is_ok()
    }

    /// Requests may come from anywhere.
    pub fn any_address(&self) -> bool {
        self.networks.is_empty()
    }

    /// An IPv4 address in IPv6's clothes is the IPv4 address.
    pub fn allows_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.any_address() || self.networks.iter().any(|n| n.contains(&address))
    }
}

fn network(n: &wire::Network) -> Option<IpNet> {
    let prefix = u8::try_from(n.prefix).ok()?;
    let address: IpAddr = match n.address.len() {
        4 => <[u8; 4]>::try_from(n.address.as_ref()).ok()?.into(),
        16 => <[u8; 16]>::try_from(n.address.as_ref()).ok()?.into(),
        _ => return None,
    };
    IpNet::new(address, prefix).ok()
}
