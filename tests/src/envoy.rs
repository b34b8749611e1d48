//! A real Envoy as a process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};

use crate::process::Process;
use crate::run::eventually;
use crate::{Call, Http, send};

/// What an Envoy is started with; kept for a restart.
#[derive(Clone, Debug)]
pub struct EnvoyConfig {
    pub program: PathBuf,
    pub bootstrap: String,
    pub listen: SocketAddr,
    pub admin: SocketAddr,
    pub env: Vec<(String, String)>,
    pub folder: PathBuf,
    pub concurrency: u32,
}

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    config: EnvoyConfig,
    process: Process,
    starts: u32,
}

impl Envoy {
    /// Starts one and waits until its admin port answers.
    pub async fn start(config: EnvoyConfig) -> Self {
        let process = launch(&config, 0).await;
        let envoy = Self { config, process, starts: 1 };
        envoy.admin_up().await;
        envoy
    }

    /// A new process with the same configuration; it has a new boot nonce and an empty store.
    pub async fn restart(&mut self) {
        self.process = launch(&self.config, self.starts).await;
        self.starts += 1;
        self.admin_up().await;
    }

    /// The same with other variables, from now on.
    pub async fn restart_with(&mut self, env: &[(&str, &str)]) {
        for (name, value) in env {
            self.config.env.retain(|(known, _)| known != name);
            self.config.env.push(((*name).to_owned(), (*value).to_owned()));
        }
        self.restart().await;
    }

    /// What it was started with.
    pub fn config(&self) -> &EnvoyConfig {
        &self.config
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.config.listen
    }

    /// Where its admin interface is.
    pub fn admin(&self) -> SocketAddr {
        self.config.admin
    }

    pub fn folder(&self) -> &Path {
        &self.config.folder
    }

    /// `http://<listener>/v1`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.config.listen)
    }

    /// Waits until the gate says that it has its state.
    pub async fn ready(&self) {
        eventually("the gate is ready", Duration::from_secs(30), || async {
            ensure!(self.process.is_running(), "Envoy ended:\n{}", self.process.log_tail(30));
            let reply = send(Http::H1, self.addr(), Call::get("/sluicegate/ready")).await?;
            ensure!(reply.status == 200, "{}", reply.status);
            Ok(())
        })
        .await;
    }

    /// A page of the admin interface.
    pub async fn page(&self, path: &str) -> anyhow::Result<String> {
        send(Http::H1, self.config.admin, Call::get(path)).await?.text().await
    }

    /// The sum of all counters and gauges whose name contains `name`.
    pub async fn stat(&self, name: &str) -> anyhow::Result<u64> {
        let stats = self.page("/stats").await?;
        let values = stats.lines().filter(|l| l.contains(name)).filter_map(|l| l.rsplit_once(": "));
        Ok(values.filter_map(|(_, v)| v.parse::<u64>().ok()).sum())
    }

    async fn admin_up(&self) {
        eventually("Envoy's admin port answers", Duration::from_secs(20), || async {
            ensure!(self.process.is_running(), "Envoy ended:\n{}", self.process.log_tail(30));
            self.page("/server_info").await.context("admin port")
        })
        .await;
    }
}

async fn launch(config: &EnvoyConfig, start: u32) -> Process {
    let bootstrap = config.folder.join("bootstrap.yaml");
    std::fs::write(&bootstrap, &config.bootstrap).expect("the folder is writable");
    let (bootstrap, concurrency) = (bootstrap.to_string_lossy().into_owned(), config.concurrency.to_string());
    let node = format!("{}-{start}", config.folder.file_name().unwrap_or_default().to_string_lossy());
    let args = [
        "-c",
        &bootstrap,
        "--concurrency",
        &concurrency,
        "--service-node",
        &node,
        "--service-cluster",
        "sluicegate",
        "--file-flush-interval-msec",
        "10",
        // Restarts on one machine must not look for the one before.
        "--disable-hot-restart",
        "--log-level",
        "info",
    ];
    let env: Vec<(&str, &str)> = config.env.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    Process::start("envoy", &config.folder, &config.program, &args, &env).await
}
