//! SDS: whom to trust at the providers, and where on its machine an Envoy finds its own certificate. Nothing here is secret;
//! credentials never travel by xDS.

use std::path::Path;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, TlsCertificate, secret,
};

use super::listener::ListenerTls;
use super::part;
use super::topology::Trust;

/// Name of the certificate that clients see.
pub const LISTENER: &str = "sluicegate-listener";
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

/// The certificate that clients see: the names of its files.
pub fn listener(tls: &ListenerTls) -> Secret {
    let file = |path: &str| {
        let specifier = core::data_source::Specifier::Filename(path.to_owned());
        Some(core::DataSource { specifier: Some(specifier), ..Default::default() })
    };
    let folder = Path::new(&tls.certificate).parent().unwrap_or(Path::new("/"));
    Secret {
        name: LISTENER.to_owned(),
        r#type: Some(secret::Type::TlsCertificate(TlsCertificate {
            certificate_chain: file(&tls.certificate),
            private_key: file(&tls.key),
            watched_directory: Some(core::WatchedDirectory {
                path: folder.display().to_string(),
                ..Default::default()
            }),
            ..Default::default()
        })),
    }
}
