//! TLS on both ports: who may speak plaintext, and certificates from files or made on the spot.

mod not_after;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use axum_server::tls_rustls::RustlsConfig;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use tonic::transport::ServerTlsConfig;
use zeroize::Zeroizing;

pub use not_after::not_after;

/// How a port is spoken to.
#[derive(Clone, Debug)]
pub enum Transport {
    Plaintext,
    Tls(Identity),
}

/// A certificate chain and its key, PEM.
#[derive(Clone)]
pub struct Identity {
    chain: String,
    key: Zeroizing<String>,
}

/// What can be wrong with the transport of a port.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(
        "{address} is not a loopback address and would be plaintext: give --tls-cert and --tls-key, \
         or --plaintext-behind-mesh where a mesh encrypts"
    )]
    Plaintext { address: SocketAddr },
    #[error("{}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("certificate and key do not make a TLS server: {0}")]
    Unusable(String),
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

/// Makes ring the process's one TLS provider. Call it once, first.
pub fn install_provider() {
    // Already installed, by another test of this process: the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl Transport {
    /// TLS where there is an identity; plaintext only on loopback, or where a mesh encrypts.
    ///
    /// # Errors
    /// [`TlsError::Plaintext`] where secrets would cross a network in the clear.
    pub fn choose(address: SocketAddr, identity: Option<Identity>, behind_mesh: bool) -> Result<Self, TlsError> {
        match identity {
            Some(identity) => Ok(Self::Tls(identity)),
            None if behind_mesh || address.ip().to_canonical().is_loopback() => Ok(Self::Plaintext),
            None => Err(TlsError::Plaintext { address }),
        }
    }

    /// For tonic; `None` for plaintext.
    pub fn grpc(&self) -> Option<ServerTlsConfig> {
        match self {
            Self::Plaintext => None,
            Self::Tls(identity) => Some(
                ServerTlsConfig::new()
                    .identity(tonic::transport::Identity::from_pem(&identity.chain, identity.key.as_bytes())),
            ),
        }
    }

    /// For axum; `None` for plaintext.
    ///
    /// # Errors
    /// When certificate and key do not fit together.
    pub async fn http(&self) -> Result<Option<RustlsConfig>, TlsError> {
        match self {
            Self::Plaintext => Ok(None),
            Self::Tls(identity) => {
                let config = RustlsConfig::from_pem(identity.chain.clone().into(), identity.key.as_bytes().to_vec());
                config.await.map(Some).map_err(|e| TlsError::Unusable(e.to_string()))
            }
        }
    }

    pub fn scheme(&self) -> &'static str {
        match self {
            Self::Plaintext => "http",
            Self::Tls(_) => "https",
        }
    }
}

impl Identity {
    /// # Errors
    /// When a file cannot be read.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|error| TlsError::File { path: path.to_owned(), error })
        };
        Ok(Self { chain: read(certificate)?, key: Zeroizing::new(read(key)?) })
    }
}

/// An authority of its own and a server certificate under it.
#[derive(Clone, Debug)]
pub struct Generated {
    pub identity: Identity,
    /// What clients are to trust, PEM.
    pub ca: String,
}

impl Generated {
    /// For a server that is reached by these names and addresses. Both keys live only as long as the value.
    ///
    /// # Errors
    /// For a name that no certificate can carry.
    pub fn new(names: &[&str]) -> Result<Self, TlsError> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        authority.distinguished_name.push(DnType::CommonName, "Sluicegate local authority");
        let authority_key = KeyPair::generate()?;
        let ca = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let mut server = CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())?;
        server.distinguished_name.push(DnType::CommonName, "Sluicegate control plane");
        let key = KeyPair::generate()?;
        let chain = server.signed_by(&key, &issuer)?.pem();
        Ok(Self { identity: Identity { chain, key: Zeroizing::new(key.serialize_pem()) }, ca })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_stays_at_home() {
        let choose = |address: &str, mesh| Transport::choose(address.parse().unwrap(), None, mesh);
        for home in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(matches!(choose(home, false), Ok(Transport::Plaintext)), "{home}");
        }
        for away in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "8.8.8.8:1"] {
            assert!(matches!(choose(away, false), Err(TlsError::Plaintext { .. })), "{away}");
            assert!(matches!(choose(away, true), Ok(Transport::Plaintext)), "{away}");
            let identity = Generated::new(&["localhost"]).unwrap().identity;
            assert!(matches!(Transport::choose(away.parse().unwrap(), Some(identity), false), Ok(Transport::Tls(_))));
        }
    }

    #[tokio::test]
    async fn both_servers_take_what_is_generated() {
        install_provider();
        let generated = Generated::new(&["localhost", "127.0.0.1"]).unwrap();
        let tls = Transport::Tls(generated.identity.clone());
        assert!(tls.http().await.unwrap().is_some());
        assert!(tonic::transport::Server::builder().tls_config(tls.grpc().unwrap()).is_ok());
        assert!(!format!("{generated:?}").contains("PRIVATE"));
        let other = Generated::new(&["localhost"]).unwrap().identity;
        let mixed = Identity { chain: generated.identity.chain, key: other.key };
        assert!(matches!(Transport::Tls(mixed).http().await, Err(TlsError::Unusable(_))));
    }
}
