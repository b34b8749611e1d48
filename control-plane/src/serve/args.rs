//! The flags of `sluicegate serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Config, ServeError, filter};
use crate::store::Seeds;
use crate::tls::{Identity, Transport};
use crate::xds::{ListenerConfig, ListenerTls, WasmCode};

/// Runs the control plane: xDS and DataPlane on the gRPC port, Admin API, health and metrics on the HTTP port.
///
/// SLUICEGATE_ADMIN_TOKEN, SLUICEGATE_NODE_TOKEN and SLUICEGATE_SEAL_KEY give a database that has no tokens its first ones.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Postgres 15 or newer, as postgres://user:password@host/database
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub database_url: String,
    /// File of keys under which secrets are sealed in the database; make one with `sluicegate keyring create`
    #[arg(long, env = "SLUICEGATE_KEYRING")]
    pub keyring: PathBuf,
    /// Where Envoys connect
    #[arg(long, env = "SLUICEGATE_GRPC", default_value = "127.0.0.1:18000")]
    pub grpc: SocketAddr,
    /// Where admins, probes and Prometheus connect
    #[arg(long, env = "SLUICEGATE_HTTP", default_value = "127.0.0.1:18001")]
    pub http: SocketAddr,
    /// Certificate chain of both ports, PEM
    #[arg(long, env = "SLUICEGATE_TLS_CERT", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Its private key, PEM
    #[arg(long, env = "SLUICEGATE_TLS_KEY", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Allow plaintext on other addresses than loopback: a mesh encrypts and authenticates
    #[arg(long)]
    pub plaintext_behind_mesh: bool,
    /// Where the Envoys listen for clients
    #[arg(long, env = "SLUICEGATE_ENVOY_LISTEN", default_value = "0.0.0.0:10000")]
    pub envoy_listen: SocketAddr,
    /// Clients speak TLS: certificate chain, PEM, a file on the Envoys' machines; renewed files are picked up
    #[arg(long, env = "SLUICEGATE_ENVOY_TLS_CERT", requires = "envoy_tls_key")]
    pub envoy_tls_cert: Option<String>,
    /// Its private key, PEM, a file on the Envoys' machines
    #[arg(long, env = "SLUICEGATE_ENVOY_TLS_KEY", requires = "envoy_tls_cert")]
    pub envoy_tls_key: Option<String>,
    /// File, on the Envoys' machines, that their access log goes to
    #[arg(long, default_value = "/dev/stdout")]
    pub access_log: String,
    /// Proxies before the Envoys whose x-forwarded-for is believed
    #[arg(long, default_value_t = 0)]
    pub trusted_hops: u32,
    /// Another filter than the one this was built with
    #[arg(long)]
    pub wasm: Option<PathBuf>,
}

impl ServeArgs {
    /// # Errors
    /// For files that cannot be read, and plaintext where it must not be.
    pub fn config(self) -> Result<Config, ServeError> {
        let identity = match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Some(Identity::load(certificate, key)?),
            _ => None,
        };
        Ok(Config {
            database_url: self.database_url.into(),
            keyring: self.keyring,
            seeds: Seeds::from_env(),
            grpc: self.grpc,
            grpc_transport: Transport::choose(self.grpc, identity.clone(), self.plaintext_behind_mesh)?,
            http: self.http,
            http_transport: Transport::choose(self.http, identity, self.plaintext_behind_mesh)?,
            listener: ListenerConfig {
                listen: self.envoy_listen,
                access_log: self.access_log,
                wasm: WasmCode::Inline(filter::load(self.wasm.as_deref())?),
                trusted_hops: self.trusted_hops,
                tls: self
                    .envoy_tls_cert
                    .zip(self.envoy_tls_key)
                    .map(|(certificate, key)| ListenerTls { certificate, key }),
            },
        })
    }
}
