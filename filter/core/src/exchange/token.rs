//! Who the holder of a verified token is.
//!
//! An identity is a subject of an issuer together with the claims that the issuer's rules speak of. It is found like a key,
//! by a hash of all that: a token with other claims is another identity, so a record never says more than its token did.

use sha2::{Digest, Sha256};

use super::credential::KeyHash;
use crate::policy::Issuer;
use crate::proto::dataplane as wire;
use crate::refusal::Refusal;

/// What an identity may consist of; a token with more is refused rather than read in part.
const MAX_BYTES: usize = 255;
const MAX_VALUES: usize = 64;

/// An identity as its token tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presented {
    /// Of all else in here; what its record is found by.
    pub hash: KeyHash,
    /// Id of the issuer.
    pub issuer: u32,
    pub subject: String,
    pub claims: Vec<Presents>,
}

/// One claim and what the token says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presents {
    pub path: Vec<String>,
    /// Sorted, each once; empty where the token does not have it.
    pub values: Vec<String>,
}

impl Presented {
    pub fn new(issuer: u32, subject: String, claims: Vec<Presents>) -> Self {
        Self { hash: hash(issuer, &subject, &claims), issuer, subject, claims }
    }

    /// Reads a payload: `claim` returns the texts at a path, one or several, none where there is nothing.
    ///
    /// # Errors
    /// A token without a subject, or with more of it than is taken.
    pub fn read(issuer: &Issuer, mut claim: impl FnMut(&[String]) -> Vec<String>) -> Result<Self, Refusal> {
        let refuse = |reason: String| Err(Refusal::InvalidToken { reason });
        let subject = claim(&["sub".to_owned()]);
        let Ok([subject]) = <[String; 1]>::try_from(subject) else {
            return refuse("its `sub` claim is missing".to_owned());
        };
        if !is_text(&subject) {
            return refuse(format!("its `sub` claim is empty, longer than {MAX_BYTES} bytes, or no text"));
        }
        let mut claims = Vec::with_capacity(issuer.claims.len());
        for asked in &issuer.claims {
            let mut values = claim(&asked.path);
            if !asked.values.is_empty() {
                values.retain(|value| asked.values.binary_search(value).is_ok());
            }
            values.sort_unstable();
            values.dedup();
            if values.len() > MAX_VALUES || !values.iter().all(|value| is_text(value)) {
                let name = asked.path.join(".");
                return refuse(format!("its `{name}` claim has too many, too long or unreadable values"));
            }
            claims.push(Presents { path: asked.path.clone(), values });
        }
        Ok(Self::new(issuer.id, subject, claims))
    }

    /// The question that the control plane answers for a boot with so many `buckets`.
    pub fn to_wire(&self, buckets: u32) -> wire::Resolve {
        let claim = |c: &Presents| wire::ClaimValues { path: c.path.clone(), values: c.values.clone() };
        wire::Resolve {
            hash: self.hash.0.to_vec().into(),
            issuer: self.issuer,
            subject: self.subject.clone(),
            claims: self.claims.iter().map(claim).collect(),
            buckets,
        }
    }

    /// `None` for a question whose hash is not that of its rest, or that no filter asks.
    pub fn from_wire(question: wire::Resolve) -> Option<Self> {
        let wire::Resolve { hash, issuer, subject, claims, buckets: _ } = question;
        let claims: Vec<Presents> = claims.into_iter().map(|c| Presents { path: c.path, values: c.values }).collect();
        let texts = claims.iter().flat_map(|c| &c.values).chain([&subject]);
        let fits = texts.into_iter().all(|text| is_text(text)) && claims.iter().all(|c| c.values.len() <= MAX_VALUES);
        let read = Self::new(issuer, subject, claims);
        (fits && read.hash.0.as_slice() == hash.as_ref()).then_some(read)
    }
}

fn is_text(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_BYTES && !text.chars().any(char::is_control)
}

/// Every part with its length before it, so that no two identities are one text. The first bytes keep it apart from the hash
/// of any key, which is that of a text beginning with `sk-sg-`.
fn hash(issuer: u32, subject: &str, claims: &[Presents]) -> KeyHash {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    part(b"token");
    part(&issuer.to_le_bytes());
    part(subject.as_bytes());
    for claim in claims {
        part(&(claim.path.len() as u64).to_le_bytes());
        claim.path.iter().for_each(|name| part(name.as_bytes()));
        part(&(claim.values.len() as u64).to_le_bytes());
        claim.values.iter().for_each(|value| part(value.as_bytes()));
    }
    KeyHash(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::policy::Claim;

    fn issuer() -> Issuer {
        let claim = |path: &[&str], values: &[&str]| Claim {
            path: path.iter().map(|s| (*s).to_owned()).collect(),
            values: values.iter().map(|s| (*s).to_owned()).collect(),
        };
        Issuer { id: 3, claims: vec![claim(&["email"], &[]), claim(&["realm", "roles"], &["admin", "ml"])] }
    }

    fn read(payload: &[(&str, &[&str])]) -> Result<Presented, Refusal> {
        let payload: BTreeMap<_, _> = payload.iter().copied().collect();
        Presented::read(&issuer(), |path| {
            payload.get(path.join(".").as_str()).into_iter().flat_map(|v| v.iter().map(|s| (*s).to_owned())).collect()
        })
    }

    #[test]
    fn what_matters_makes_the_identity() {
        let one = read(&[("sub", &["u1"]), ("email", &["a@x"]), ("realm.roles", &["ml", "other", "ml"])]).unwrap();
        assert_eq!(one.claims[1].values, ["ml"]);
        let same = read(&[("sub", &["u1"]), ("email", &["a@x"]), ("realm.roles", &["ml", "yet another"])]).unwrap();
        assert_eq!(one, same, "a role that means nothing changes nothing");
        for other in [
            read(&[("sub", &["u2"]), ("email", &["a@x"]), ("realm.roles", &["ml"])]),
            read(&[("sub", &["u1"]), ("email", &["b@x"]), ("realm.roles", &["ml"])]),
            read(&[("sub", &["u1"]), ("email", &["a@x"]), ("realm.roles", &["admin", "ml"])]),
            read(&[("sub", &["u1"]), ("email", &["a@x"])]),
        ] {
            assert_ne!(other.unwrap().hash, one.hash);
        }
        // The same text, cut elsewhere.
        let cut =
            |a: &str, b: &str| Presented::new(1, a.into(), vec![Presents { path: vec![], values: vec![b.into()] }]);
        assert_ne!(cut("ab", "c").hash, cut("a", "bc").hash);
    }

    #[test]
    fn a_question_survives_the_wire_and_a_forged_one_does_not() {
        let asked = read(&[("sub", &["u1"]), ("email", &["a@x"])]).unwrap();
        assert_eq!(Presented::from_wire(asked.to_wire(64)), Some(asked.clone()));
        let forged = wire::Resolve { subject: "u2".into(), ..asked.to_wire(64) };
        assert_eq!(Presented::from_wire(forged), None);
    }

    #[test]
    fn an_unreadable_token_is_refused_in_words() {
        for payload in [
            &[("email", ["a@x"].as_slice())] as &[(&str, &[&str])],
            &[("sub", &["a", "b"])],
            &[("sub", &[""])],
            &[("sub", &["u\n"])],
            &[("sub", &["u"]), ("email", &["\0"])],
        ] {
            assert!(matches!(read(payload), Err(Refusal::InvalidToken { .. })), "{payload:?}");
        }
    }
}
