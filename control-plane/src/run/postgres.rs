//! A Postgres of our own: made, started and stopped with this process, on loopback alone.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use zeroize::Zeroizing;

use super::child::{self, Identity};
use super::logfile;
use super::tools::{MissingTool, Tools};

/// The role of the control plane.
const NAME: &str = "sluicegate";
/// What the server says when it takes connections.
const READY: &str = "database system is ready to accept connections";

/// A running server. Dropping it kills the server; [`Self::stop`] shuts it down.
#[derive(Debug)]
pub struct Postgres {
    server: Child,
    address: SocketAddr,
    url: Zeroizing<String>,
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("{program} failed:\n{output}")]
    Failed { program: &'static str, output: String },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> PostgresError {
    move |error| PostgresError::Io { what: what.into(), error }
}

/// Where a server keeps its things.
#[derive(Clone, Debug)]
pub struct Place {
    /// Made when it is not there; only ours to read.
    pub directory: PathBuf,
    pub listen: SocketAddr,
    pub password: Zeroizing<String>,
    /// More of the server's settings, each `name=value`.
    pub settings: Vec<String>,
}

impl Postgres {
    /// Starts a server in `place`, which is filled first when it is empty.
    ///
    /// # Errors
    /// When the tools are missing or the server does not start; the message holds what it said.
    pub async fn start(tools: &Tools, place: &Place) -> Result<Self, PostgresError> {
        let mut last = None;
        for identity in Identity::not_root() {
            match Self::start_as(tools, place, *identity).await {
                Err(PostgresError::Io { what, error }) => last = Some(PostgresError::Io { what, error }),
                result => return result,
            }
        }
        // `not_root` names at least one.
        Err(last.unwrap_or(PostgresError::Failed { program: "postgres", output: String::new() }))
    }

    async fn start_as(tools: &Tools, place: &Place, identity: Identity) -> Result<Self, PostgresError> {
        let data = place.directory.join("data");
        if !data.join("PG_VERSION").exists() {
            initialise(tools, place, &data, identity).await?;
        }
        let mut command = Command::new(tools.postgres("postgres")?);
        command.arg("-D").arg(&data).args(["-p", &place.listen.port().to_string(), "-k", ""]);
        command.arg("-c").arg(format!("listen_addresses={}", place.listen.ip()));
        command.args(["-c", "max_connections=100", "-c", "shared_buffers=64MB"]);
        command.args(place.settings.iter().flat_map(|setting| ["-c", setting]));
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        // SIGINT is Postgres's fast shutdown; SIGTERM would wait for its clients.
        let mut server = child::spawn(command, identity, Signal::INT).map_err(io_error("postgres"))?;
        if let Some(log) = server.stderr.take() {
            await_ready(log, &place.directory.join("postgres.log")).await?;
        }
        let url = format!("postgres://{NAME}:{}@{}/postgres", *place.password, place.listen);
        Ok(Self { server, address: place.listen, url: Zeroizing::new(url) })
    }

    /// A connection string, with the password.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.server.id()
    }

    /// How the server ended by itself, once it has.
    pub async fn ended(&mut self) -> String {
        child::ended(&mut self.server).await
    }

    /// A fast shutdown: running transactions are rolled back, everything committed is on disk.
    pub async fn stop(mut self) {
        child::stop(&mut self.server, Signal::INT).await;
    }
}

async fn initialise(tools: &Tools, place: &Place, data: &Path, identity: Identity) -> Result<(), PostgresError> {
    let initdb = tools.postgres("initdb")?;
    // One that was broken off would be refused as not empty.
    let _ = std::fs::remove_dir_all(data);
    let at = |path: &Path| io_error(path.display().to_string());
    std::fs::create_dir_all(&place.directory).map_err(at(&place.directory))?;
    child::give(&place.directory, identity).map_err(at(&place.directory))?;
    let password = place.directory.join("password");
    super::private::write(&password, place.password.as_bytes()).map_err(at(&password))?;
    child::give(&password, identity).map_err(at(&password))?;
    let mut command = Command::new(initdb);
    command.arg("-D").arg(data).arg(format!("--pwfile={}", password.display()));
    command.args(["-U", NAME, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let made = child::spawn(command, identity, Signal::KILL).map_err(io_error("initdb"))?.wait_with_output().await;
    let _ = std::fs::remove_file(&password);
    let made = made.map_err(io_error("initdb"))?;
    if made.status.success() {
        return Ok(());
    }
    Err(PostgresError::Failed { program: "initdb", output: String::from_utf8_lossy(&made.stderr).into_owned() })
}

/// Copies the server's log to `file` for as long as it runs; returns when the server is ready or has ended.
async fn await_ready(log: ChildStderr, file: &Path) -> Result<(), PostgresError> {
    let copy = logfile::open(file).map_err(io_error(file.display().to_string()))?;
    let mut copy = tokio::fs::File::from_std(copy);
    let mut lines = BufReader::new(log).lines();
    let mut said = String::new();
    loop {
        let Some(line) = lines.next_line().await.map_err(io_error("postgres"))? else {
            return Err(PostgresError::Failed { program: "postgres", output: said });
        };
        said.push_str(&line);
        said.push('\n');
        if line.contains(READY) {
            break;
        }
    }
    tokio::spawn(async move {
        let _ = copy.write_all(said.as_bytes()).await;
        while let Ok(Some(line)) = lines.next_line().await {
            let _ = copy.write_all(format!("{line}\n").as_bytes()).await;
        }
    });
    Ok(())
}
