//! A real control plane as a process. Whoever changes its flags or variables changes this file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::ensure;
use test_postgres::Database;

use crate::client::{Call, Http, send};
use crate::process::Process;
use crate::run::eventually;
use crate::stack::{ADMIN_TOKEN, NODE_TOKEN, SEAL_KEY};
use crate::tools;

/// The control plane as a process.
#[derive(Debug)]
pub struct ControlPlane {
    process: Process,
    database: Database,
    folder: PathBuf,
    http: SocketAddr,
    grpc: SocketAddr,
    envoy: SocketAddr,
    options: Options,
}

/// What a control plane is started with beside the usual.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Another filter than the one it was built with.
    pub filter: Option<PathBuf>,
    /// Certificate and key that clients of its Envoys see.
    pub client_tls: Option<(PathBuf, PathBuf)>,
}

impl ControlPlane {
    /// Starts it on `database` and waits until it is ready; `envoy` is where its Envoys listen.
    pub async fn start(database: &Database, envoy: SocketAddr, options: Options) -> Self {
        let folder = tools::folder("control-plane");
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (http, grpc) = (local(tools::free_port()), local(tools::free_port()));
        let process = launch(&folder, database, http, grpc, envoy, &options).await;
        let control = Self { process, database: database.clone(), folder, http, grpc, envoy, options };
        control.ready().await;
        control
    }

    /// Starts again on the same ports and database.
    pub async fn restart(&mut self) {
        let Self { folder, database, http, grpc, envoy, options, .. } = &*self;
        self.process = launch(folder, database, *http, *grpc, *envoy, options).await;
        self.ready().await;
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Where REST, `/metrics` and `/readyz` are.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// Where Envoys connect.
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    pub async fn ready(&self) {
        eventually("the control plane is ready", Duration::from_secs(30), || async {
            ensure!(self.process.is_running(), "it ended:\n{}", self.process.log_tail(30));
            let reply = send(Http::H1, self.http, Call::get("/readyz")).await?;
            ensure!(reply.status == 200, "{}", reply.status);
            Ok(())
        })
        .await;
    }

    /// The Envoy's access log.
    pub fn access_log(&self) -> PathBuf {
        self.folder.join("access.log")
    }

    /// Runs a command of the CLI against this control plane and returns what it prints.
    pub async fn cli(&self, args: &[&str]) -> anyhow::Result<String> {
        self.cli_fed(args, Stdio::null()).await
    }

    /// The same with this standard input.
    pub async fn cli_fed(&self, args: &[&str], input: impl Into<Stdio>) -> anyhow::Result<String> {
        let output = self.command(args).stdin(input).output().await?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The same for a command that may fail.
    pub async fn cli_output(&self, args: &[&str]) -> anyhow::Result<std::process::Output> {
        Ok(self.command(args).output().await?)
    }

    fn command(&self, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(tools::built("sluicegate"));
        command
            .args(args)
            .envs([("SLUICEGATE_ADMIN_TOKEN", ADMIN_TOKEN), ("DATABASE_URL", &self.database.url)])
            .env("SLUICEGATE_URL", format!("http://{}", self.http));
        command
    }
}

async fn launch(
    folder: &Path,
    db: &Database,
    http: SocketAddr,
    grpc: SocketAddr,
    envoy: SocketAddr,
    options: &Options,
) -> Process {
    let keyring = folder.join("keyring");
    if !keyring.exists() {
        std::fs::write(&keyring, format!("sluicegate-keyring v1\n5f2c9a1b {}\n", "42".repeat(32)))
            .expect("the folder is writable");
    }
    let access_log = folder.join("access.log");
    let (http, grpc, envoy) = (http.to_string(), grpc.to_string(), envoy.to_string());
    let (keyring, access_log) = (keyring.to_string_lossy(), access_log.to_string_lossy());
    let mut args = vec![
        "serve",
        "--http",
        &http,
        "--grpc",
        &grpc,
        "--envoy-listen",
        &envoy,
        "--keyring",
        &keyring,
        "--access-log",
        &access_log,
    ];
    let filter = options.filter.as_deref().map(Path::to_string_lossy);
    if let Some(filter) = &filter {
        args.extend(["--wasm", filter.as_ref()]);
    }
    let tls = options.client_tls.as_ref().map(|(cert, key)| (cert.to_string_lossy(), key.to_string_lossy()));
    if let Some((certificate, key)) = &tls {
        args.extend(["--envoy-tls-cert", certificate.as_ref(), "--envoy-tls-key", key.as_ref()]);
    }
    let env = [
        ("DATABASE_URL", db.url.as_str()),
        ("SLUICEGATE_ADMIN_TOKEN", ADMIN_TOKEN),
        ("SLUICEGATE_NODE_TOKEN", NODE_TOKEN),
        ("SLUICEGATE_SEAL_KEY", SEAL_KEY),
        ("RUST_LOG", "info"),
    ];
    Process::start("control-plane", folder, &tools::built("sluicegate"), &args, &env).await
}
