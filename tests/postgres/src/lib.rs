//! A Postgres for tests: the one that `sluicegate run` starts, one per test binary, a database for each test.
#![expect(clippy::expect_used, clippy::panic, reason = "a harness panics to fail a test")]

pub mod scratch;

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use sluicegate::run::postgres::{Place, Postgres as Server, PostgresError};
use sluicegate::run::tools::Tools;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use zeroize::Zeroizing;

static MIGRATIONS: Migrator = sqlx::migrate!("../../control-plane/migrations");
/// Where migrated databases are copied from.
const TEMPLATE: &str = "template";

/// A server ends with the *thread* that started it. Those of this runtime end with the process, those of a test with it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

/// A server with its data. Without fsync, since no test cuts the power; commits do reach the kernel, so a killed server
/// loses none. Whoever kills one starts one: the others share [`shared`].
#[derive(Debug)]
pub struct Postgres {
    place: Place,
    /// `None` when it was killed.
    server: Option<Server>,
    template: OnceCell<()>,
}

/// An address to connect to.
#[derive(Clone, Debug)]
pub struct Database {
    pub url: String,
}

/// The server that the tests of one binary share.
pub async fn shared() -> &'static Postgres {
    static SHARED: OnceCell<Postgres> = OnceCell::const_new();
    SHARED.get_or_init(Postgres::start).await
}

/// A fresh migrated database on the shared server.
pub async fn database() -> Database {
    shared().await.migrated().await
}

impl Postgres {
    pub async fn start() -> Self {
        let directory = scratch::folder("postgres");
        // Proving a password takes most of a connection's time in an unoptimised build, and each test makes some.
        let trust = directory.join("trust.conf");
        std::fs::write(&trust, "host all all 127.0.0.1/32 trust\n").expect("the folder is writable");
        let settings = ["fsync=off", "full_page_writes=off", "max_connections=300"].map(str::to_owned);
        let place = Place {
            listen: SocketAddr::from(([127, 0, 0, 1], scratch::free_port())),
            password: Zeroizing::new("nobody-is-asked".to_owned()),
            settings: settings.into_iter().chain([format!("hba_file={}", trust.display())]).collect(),
            directory,
        };
        let server = serve(place.clone()).await.unwrap_or_else(|error| panic!("{error}"));
        Self { place, server: Some(server), template: OnceCell::new() }
    }

    /// SIGKILL to the postmaster; its children end by themselves.
    pub async fn kill_9(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        let pid = server.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it runs");
        kill_process(pid, Signal::KILL).expect("it is ours");
        server.ended().await;
    }

    /// Starts again on the same data and port; what was not killed before is shut down.
    pub async fn restart(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop().await;
        }
        let mut last = String::new();
        for _ in 0..100 {
            match serve(self.place.clone()).await {
                Ok(server) => {
                    self.server = Some(server);
                    return;
                }
                // The children of a killed postmaster hold the shared memory for a moment.
                Err(error) => last = error.to_string(),
            }
        }
        panic!("Postgres does not come back: {last}");
    }

    /// A database by its name.
    pub fn database(&self, name: &str) -> Database {
        Database { url: format!("postgres://sluicegate@{}/{name}?sslmode=disable", self.place.listen) }
    }

    /// A new database with nothing in it.
    pub async fn empty(&self) -> Database {
        self.create(&new_name(), "").await
    }

    /// A new database with the schema of today.
    pub async fn migrated(&self) -> Database {
        let template = async {
            let template = self.create(TEMPLATE, "").await;
            let mut connection = template.connect().await;
            MIGRATIONS.run(&mut connection).await.expect("the migrations run");
            connection.close().await.expect("a template must have no connection");
        };
        self.template.get_or_init(|| template).await;
        self.create(&new_name(), &format!("template {TEMPLATE}")).await
    }

    async fn create(&self, name: &str, how: &str) -> Database {
        let mut admin = self.database("postgres").connect().await;
        admin.execute(AssertSqlSafe(format!("create database {name} {how}"))).await.expect("a new database");
        self.database(name)
    }
}

impl Database {
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("a connection")
    }

    pub async fn pool(&self) -> PgPool {
        PgPoolOptions::new().max_connections(4).connect(&self.url).await.expect("a pool")
    }
}

fn new_name() -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    format!("test_{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

async fn serve(place: Place) -> Result<Server, PostgresError> {
    let start = async move { Server::start(&Tools::find(), &place).await };
    RUNTIME.spawn(start).await.expect("it does not panic")
}
