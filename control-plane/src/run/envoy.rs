//! The Envoy of the local run.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use tokio::process::{Child, Command};
use zeroize::Zeroizing;

use super::bootstrap::Bootstrap;
use super::child::{self, Identity};
use super::logfile;
use super::tools::{MissingTool, Tools};

/// What an Envoy is started with.
#[derive(Clone, Debug)]
pub struct EnvoyConfig {
    /// For its bootstrap and its log.
    pub directory: PathBuf,
    /// Unique to the process.
    pub node: String,
    pub admin: SocketAddr,
    pub control_plane: SocketAddr,
    pub ca: Option<PathBuf>,
    pub workers: u32,
    pub node_token: Zeroizing<String>,
    pub seal_key: Zeroizing<String>,
}

/// A running Envoy. Dropping it kills it; [`Self::stop`] lets it flush its access log.
#[derive(Debug)]
pub struct Envoy {
    process: Child,
}

/// Why there is no Envoy.
#[derive(Debug, thiserror::Error)]
pub enum EnvoyError {
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
}

impl Envoy {
    /// # Errors
    /// When it is not there or cannot be started.
    pub fn start(tools: &Tools, config: &EnvoyConfig) -> Result<Self, EnvoyError> {
        let at = |path: &Path| {
            let what = path.display().to_string();
            move |error| EnvoyError::Io { what, error }
        };
        let bootstrap = config.directory.join("envoy.yaml");
        let log = config.directory.join("envoy.log");
        let rendered = Bootstrap { admin: config.admin, control_plane: config.control_plane, ca: config.ca.clone() };
        std::fs::write(&bootstrap, rendered.render()).map_err(at(&bootstrap))?;
        let out = logfile::open(&log).map_err(at(&log))?;
        let program = tools.envoy()?;
        let mut command = Command::new(&program);
        command.arg("-c").arg(&bootstrap).args(["--service-node", &config.node, "--service-cluster", "sluicegate"]);
        command.args(["--concurrency", &config.workers.to_string(), "--log-level", "warning"]);
        // The access log is the second witness of usage; by default it is 10 s behind.
        command.args(["--file-flush-interval-msec", "10"]);
        // Another Envoy on this machine must not be looked for.
        command.arg("--disable-hot-restart");
        command
            .env("SLUICEGATE_NODE_TOKEN", config.node_token.as_str())
            .env("SLUICEGATE_SEAL_KEY", config.seal_key.as_str());
        command.stdout(out.try_clone().map_err(at(&log))?).stderr(out);
        let process = child::spawn(command, Identity::Same, Signal::TERM).map_err(at(&program))?;
        Ok(Self { process })
    }

    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// How it ended by itself, once it has.
    pub async fn ended(&mut self) -> String {
        child::ended(&mut self.process).await
    }

    pub async fn stop(mut self) {
        child::stop(&mut self.process, Signal::TERM).await;
    }
}
