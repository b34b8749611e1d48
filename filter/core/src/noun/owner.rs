//! Whom a request belongs to.

use crate::proto::dataplane as wire;

/// A level of `Org > Team > User > Key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum OwnerKind {
    Org = 1,
    Team = 2,
    User = 3,
    Key = 4,
}

impl OwnerKind {
    /// From its number on the wire and in shared data; `None` for a number this build does not know.
    pub fn from_u8(n: u8) -> Option<Self> {
        match n {
            1 => Some(Self::Org),
            2 => Some(Self::Team),
            3 => Some(Self::User),
            4 => Some(Self::Key),
            _ => None,
        }
    }
}

/// One owner. Ids are the store's, never reused; 0 is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub kind: OwnerKind,
    pub id: u32,
}

impl Owner {
    /// `None` for a kind this build does not know.
    pub fn from_wire(owner: &wire::Owner) -> Option<Self> {
        let kind = OwnerKind::from_u8(u8::try_from(owner.kind).ok()?)?;
        Some(Self { kind, id: owner.id })
    }

    pub fn to_wire(self) -> wire::Owner {
        wire::Owner { kind: i32::from(self.kind as u8), id: self.id }
    }
}
