//! SDS: whom to trust at the providers. Nothing here is secret; credentials never travel by xDS.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{CertificateValidationContext, Secret, secret};

use super::part;
use super::topology::Trust;

/// Name of the trust bundle of the public roots.
const PUBLIC_ROOTS: &str = "sluicegate-public-roots";

/// Mozilla's roots as PEM, 200 KB, built once.
static PUBLIC_ROOTS_PEM: LazyLock<String> = LazyLock::new(|| {
    webpki_root_certs::TLS_SERVER_ROOT_CERTS
        .iter()
        .map(|der| format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(der)))
        .collect()
});

/// The bundle's SDS name; `None` without TLS.
pub fn name(trust: &Trust) -> Option<String> {
    match trust {
        Trust::Plaintext => None,
        Trust::PublicRoots => Some(PUBLIC_ROOTS.to_owned()),
        Trust::Ca { owner, .. } => Some(format!("sluicegate-ca-{owner}")),
    }
}

/// The bundle itself; `None` without TLS.
pub fn bundle(trust: &Trust) -> Option<Secret> {
    let pem = match trust {
        Trust::Plaintext => return None,
        Trust::PublicRoots => PUBLIC_ROOTS_PEM.as_str(),
        Trust::Ca { pem, .. } => pem,
    };
    Some(Secret {
        name: name(trust)?,
        r#type: Some(secret::Type::ValidationContext(CertificateValidationContext {
            trusted_ca: Some(part::inline(pem)),
            ..Default::default()
        })),
    })
}
