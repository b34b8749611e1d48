//! Whose tokens are taken instead of keys, and what is read in them.

use std::collections::HashMap;

use super::compile::{Result, refuse, unique};
use crate::proto::policy as wire;

/// Claims of one issuer, segments of one path, values that mean something: no policy needs more.
const MAX_CLAIMS: usize = 16;
const MAX_SEGMENTS: usize = 8;
const MAX_VALUES: usize = 1_000;
const MAX_ISSUER_BYTES: usize = 512;

/// An issuer of tokens (JWT). Envoy verifies them; this says what to read in the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    pub id: u32,
    pub claims: Vec<Claim>,
}

/// A claim that tells identities of one subject apart: another value is another identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Into the payload.
    pub path: Vec<String>,
    /// Those that mean something, sorted; empty: any.
    pub values: Vec<String>,
}

/// By the `iss` claim.
pub(super) fn compile(issuers: &[wire::Issuer]) -> Result<HashMap<String, Issuer>> {
    unique("issuers", issuers, |issuer| issuer.id)?;
    let mut compiled = HashMap::with_capacity(issuers.len());
    for (i, issuer) in issuers.iter().enumerate() {
        let iss = issuer.issuer.as_str();
        if iss.is_empty() || iss.len() > MAX_ISSUER_BYTES {
            return refuse(format!("issuers[{i}].issuer"), format!("must have 1 to {MAX_ISSUER_BYTES} bytes"));
        }
        if issuer.claims.len() > MAX_CLAIMS {
            return refuse(format!("issuers[{i}].claims"), format!("are more than {MAX_CLAIMS}"));
        }
        let claim = |(j, claim)| compile_claim(&format!("issuers[{i}].claims[{j}]"), claim);
        let claims = issuer.claims.iter().enumerate().map(claim).collect::<Result<_>>()?;
        if compiled.insert(iss.to_owned(), Issuer { id: issuer.id, claims }).is_some() {
            return refuse(format!("issuers[{i}].issuer"), format!("{iss:?} stands here twice"));
        }
    }
    Ok(compiled)
}

fn compile_claim(field: &str, claim: &wire::Claim) -> Result<Claim> {
    let segment_ok = |s: &String| !s.is_empty() && !s.contains('\0');
    if claim.path.is_empty() || claim.path.len() > MAX_SEGMENTS || !claim.path.iter().all(segment_ok) {
        return refuse(format!("{field}.path"), format!("must have 1 to {MAX_SEGMENTS} names"));
    }
    if claim.values.len() > MAX_VALUES {
        return refuse(format!("{field}.values"), format!("are more than {MAX_VALUES}"));
    }
    let mut values = claim.values.clone();
    values.sort_unstable();
    Ok(Claim { path: claim.path.clone(), values })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer() -> wire::Issuer {
        let claim = wire::Claim { path: vec!["groups".into()], values: vec!["b".into(), "a".into()] };
        wire::Issuer { id: 1, issuer: "https://id.example".into(), claims: vec![claim] }
    }

    fn field_of(change: impl FnOnce(&mut Vec<wire::Issuer>)) -> String {
        let mut issuers = vec![issuer()];
        change(&mut issuers);
        compile(&issuers).unwrap_err().field
    }

    #[test]
    fn an_issuer_is_found_by_its_iss() {
        let compiled = compile(&[issuer()]).unwrap();
        let found = compiled.get("https://id.example").unwrap();
        assert_eq!((found.id, found.claims[0].values.as_slice()), (1, ["a".to_owned(), "b".to_owned()].as_slice()));
    }

    #[test]
    fn every_fault_names_its_field() {
        assert_eq!(field_of(|i| i[0].id = 0), "issuers[0].id");
        assert_eq!(field_of(|i| i.push(issuer())), "issuers[1].id");
        assert_eq!(field_of(|i| i.push(wire::Issuer { id: 2, ..issuer() })), "issuers[1].issuer");
        assert_eq!(field_of(|i| i[0].issuer.clear()), "issuers[0].issuer");
        assert_eq!(field_of(|i| i[0].claims[0].path.clear()), "issuers[0].claims[0].path");
        assert_eq!(field_of(|i| i[0].claims[0].path[0] = "a\0b".into()), "issuers[0].claims[0].path");
        assert_eq!(field_of(|i| i[0].claims = vec![wire::Claim::default(); 17]), "issuers[0].claims");
    }
}
