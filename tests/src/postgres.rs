//! One Postgres per test binary, one database per stack, cloned from a migrated template.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{Connection, Executor};
use tokio::sync::OnceCell;

use crate::process::{Process, run_unprivileged};
use crate::run::eventually;
use crate::tools;

/// A server with its data folder. Without fsync, since no test cuts the power; commits do reach the kernel,
/// so a killed server loses none.
#[derive(Debug)]
pub struct Postgres {
    process: Process,
    data: PathBuf,
    port: u16,
}

/// An address to connect to.
#[derive(Clone, Debug)]
pub struct Database {
    pub url: String,
}

impl Postgres {
    pub async fn start() -> Self {
        let data = tools::folder("postgres");
        let args =
            ["-A", "trust", "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8", "-D", &data.to_string_lossy()];
        run_unprivileged(&tools::postgres("initdb"), &args).await;
        let port = tools::free_port();
        let process = launch(&data, port).await;
        let server = Self { process, data, port };
        server.ready().await;
        server
    }

    /// SIGKILL to the postmaster; its children end by themselves.
    pub async fn kill_9(&self) {
        self.process.kill_9().await;
    }

    /// Starts again on the same data and port.
    pub async fn restart(&mut self) {
        // The children of a killed postmaster hold the shared memory for a moment.
        for _ in 0..50 {
            self.process = launch(&self.data, self.port).await;
            if tokio::time::timeout(Duration::from_millis(200), self.process.ended()).await.is_err() {
                break;
            }
        }
        self.ready().await;
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    async fn ready(&self) {
        let url = self.database("postgres").url;
        eventually("Postgres accepts connections", Duration::from_secs(20), || async {
            anyhow::ensure!(self.process.is_running(), "Postgres ended:\n{}", self.process.log_tail(20));
            Ok(PgConnection::connect(&url).await?.close().await?)
        })
        .await;
    }

    pub fn database(&self, name: &str) -> Database {
        Database { url: format!("postgres://postgres@127.0.0.1:{}/{name}?sslmode=disable", self.port) }
    }

    /// A new database with the schema of today.
    pub async fn migrated(&self, template: &str) -> Database {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let mut admin = PgConnection::connect(&self.database("postgres").url).await.expect("a connection");
        let sql = format!("create database {name} template {template}");
        admin.execute(sqlx::AssertSqlSafe(sql)).await.expect("a new database");
        self.database(&name)
    }

    /// Makes the template.
    pub async fn migrate(&self, template: &str) {
        let mut admin = PgConnection::connect(&self.database("postgres").url).await.expect("a connection");
        let sql = format!("create database {template}");
        admin.execute(sqlx::AssertSqlSafe(sql)).await.expect("a new database");
        let mut connection = PgConnection::connect(&self.database(template).url).await.expect("a connection");
        sqlx::migrate!("../control-plane/migrations").run(&mut connection).await.expect("the migrations run");
        connection.close().await.expect("a template must have no connection");
    }
}

impl Database {
    pub async fn pool(&self) -> PgPool {
        PgPoolOptions::new().max_connections(4).connect(&self.url).await.expect("a pool")
    }
}

const TEMPLATE: &str = "sluicegate_template";

/// The server that tests share. Who kills one starts one.
pub async fn shared() -> &'static Postgres {
    static SHARED: OnceCell<Postgres> = OnceCell::const_new();
    SHARED
        .get_or_init(|| async {
            let server = Postgres::start().await;
            server.migrate(TEMPLATE).await;
            server
        })
        .await
}

/// A fresh migrated database on the shared server.
pub async fn database() -> Database {
    shared().await.migrated(TEMPLATE).await
}

async fn launch(data: &std::path::Path, port: u16) -> Process {
    let (data_text, port) = (data.to_string_lossy().into_owned(), port.to_string());
    let args = [
        "-D",
        &data_text,
        "-k",
        "",
        "-p",
        &port,
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        "fsync=off",
        "-c",
        "full_page_writes=off",
        "-c",
        "max_connections=300",
    ];
    Process::start_unprivileged(
        &format!("postgres-{port}"),
        data.parent().unwrap_or(data),
        &tools::postgres("postgres"),
        &args,
    )
    .await
}
