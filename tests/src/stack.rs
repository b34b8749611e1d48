//! How a whole Sluicegate is put together. Whoever changes flags, variables or the bootstrap changes this file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use scripted_provider::{Answer, Listen, Provider, Recorded, Rule, Script, TestCa};
use serde_json::{Value, json};
use test_postgres::Database;
use tokio::sync::OnceCell;

use crate::admin::{Admin, NewKey};
use crate::client::{Call, Http, Reply, send};
use crate::envoy::{Envoy, EnvoyConfig};
use crate::fault::FaultProxy;
use crate::interpose::Interposer;
use crate::ledger::Ledger;
use crate::process::Process;
use crate::run::eventually;
use crate::tools;

/// What the test stack is configured with, known to tests that search for it.
pub const ADMIN_TOKEN: &str = "admin-canary-5f1e0d7c9b8a4632";
pub const NODE_TOKEN: &str = "sgn-canary-90b1c2d3e4f5061728394a5b6c7d8e9f";
pub const SEAL_KEY: &str = "8f0e1d2c3b4a5968778695a4b3c2d1e0f0e1d2c3b4a5968778695a4b3c2d1e0f";
pub const PROVIDER_SECRET: &str = "sk-provider-canary-7c6b5a49382716051";

/// The models of every stack: priced like this, in dollars per million tokens.
pub const CHAT: &str = "gpt-scripted";
pub const EMBED: &str = "embed-scripted";
/// [`CHAT`] under another name.
pub const ALIAS: &str = "alias";
/// Nano-dollars per token.
pub const INPUT_NANO: i64 = 2_500;
pub const CACHED_NANO: i64 = 250;
pub const OUTPUT_NANO: i64 = 10_000;

/// What stands between Envoy and its control plane.
#[derive(Debug)]
pub enum Between {
    Nothing,
    Faults(FaultProxy),
    Interposer(Interposer),
}

/// What is asked of a stack beside the usual.
#[derive(Debug, Default)]
pub struct Wanted {
    pub faults: bool,
    pub interposer: bool,
    /// Instead of a new database on the shared server.
    pub database: Option<Database>,
    /// The provider speaks TLS under this name.
    pub tls_name: Option<&'static str>,
    /// Another Envoy than the default.
    pub envoy: Option<PathBuf>,
    /// Envoy's workers; 2 where nothing is said.
    pub workers: Option<u32>,
    /// Another filter than the one in the control plane.
    pub filter: Option<PathBuf>,
}

/// The control plane as a process.
#[derive(Debug)]
pub struct ControlPlane {
    process: Process,
    database: Database,
    folder: PathBuf,
    http: SocketAddr,
    grpc: SocketAddr,
    envoy: SocketAddr,
    filter: Option<PathBuf>,
}

/// One control plane, one Envoy, one scripted provider, one database.
#[derive(Debug)]
pub struct Stack {
    pub envoy: Envoy,
    pub control: ControlPlane,
    pub between: Between,
    pub provider: Provider,
    pub admin: Admin,
    pub ledger: Ledger,
    pub database: Database,
}

impl ControlPlane {
    async fn start(database: &Database, envoy: SocketAddr, filter: Option<PathBuf>) -> Self {
        let folder = tools::folder("control-plane");
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (http, grpc) = (local(tools::free_port()), local(tools::free_port()));
        let process = launch(&folder, database, http, grpc, envoy, filter.as_deref()).await;
        let control = Self { process, database: database.clone(), folder, http, grpc, envoy, filter };
        control.ready().await;
        control
    }

    /// Starts again on the same ports and database.
    pub async fn restart(&mut self) {
        let filter = self.filter.as_deref();
        self.process = launch(&self.folder, &self.database, self.http, self.grpc, self.envoy, filter).await;
        self.ready().await;
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Where REST, `/metrics` and `/readyz` are.
    pub fn http(&self) -> SocketAddr {
        self.http
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
        let output = tokio::process::Command::new(tools::built("sluicegate"))
            .args(args)
            .envs([("SLUICEGATE_ADMIN_TOKEN", ADMIN_TOKEN), ("DATABASE_URL", &self.database.url)])
            .env("SLUICEGATE_URL", format!("http://{}", self.http))
            .output()
            .await?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }
}

async fn launch(
    folder: &Path,
    db: &Database,
    http: SocketAddr,
    grpc: SocketAddr,
    envoy: SocketAddr,
    filter: Option<&Path>,
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
    let filter = filter.map(Path::to_string_lossy);
    if let Some(filter) = &filter {
        args.extend(["--wasm", filter.as_ref()]);
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

impl Stack {
    /// A stack of one's own, seeded and ready.
    pub async fn start() -> Self {
        Self::with(Wanted::default()).await
    }

    pub async fn with(wanted: Wanted) -> Self {
        let database = match wanted.database {
            Some(database) => database,
            None => test_postgres::database().await,
        };
        let listen = SocketAddr::from(([127, 0, 0, 1], tools::free_port()));
        let control = ControlPlane::start(&database, listen, wanted.filter).await;
        let between = if wanted.interposer {
            Between::Interposer(Interposer::start(control.grpc).await)
        } else if wanted.faults {
            Between::Faults(FaultProxy::start(control.grpc).await)
        } else {
            Between::Nothing
        };
        let (provider, ca) = provider(wanted.tls_name).await;
        let admin = Admin::new(control.http, ADMIN_TOKEN);
        let ledger = Ledger::new(database.pool().await);
        let known = admin.get("/v1/providers").await.expect("the providers");
        if known.to_string().contains("\"scripted\"") {
            // A database with a past: its provider's port is gone.
            repoint(&ledger, &provider).await;
        } else {
            seed(&admin, &provider, wanted.tls_name, ca.as_deref()).await.expect("the seed is accepted");
        }
        let to_control = match &between {
            Between::Nothing => control.grpc,
            Between::Faults(proxy) => proxy.addr(),
            Between::Interposer(interposer) => interposer.addr(),
        };
        let program = wanted.envoy.unwrap_or_else(tools::envoy);
        let config = envoy_config(program, listen, to_control);
        let envoy = Envoy::start(EnvoyConfig { concurrency: wanted.workers.unwrap_or(2), ..config }).await;
        envoy.ready().await;
        let stack = Self { envoy, control, between, provider, admin, ledger, database };
        stack.models_usable().await;
        stack
    }

    /// The stack that tests share, for what leaves no trace outside its own org.
    pub async fn shared() -> &'static Self {
        static SHARED: OnceCell<Stack> = OnceCell::const_new();
        static TRIED: AtomicBool = AtomicBool::new(false);
        SHARED
            .get_or_init(|| async {
                // It takes half a minute to find out, so one test does it for all.
                assert!(!TRIED.swap(true, Ordering::Relaxed), "the shared stack did not start; another test says why");
                Self::start().await
            })
            .await
    }

    /// A new org with one key, under a name that no other test has.
    pub async fn scene(&self, name: &str) -> Scene<'_> {
        Scene::new(self, name, json!({})).await
    }

    pub fn interposer(&self) -> &Interposer {
        match &self.between {
            Between::Interposer(interposer) => interposer,
            _ => panic!("this stack was started without an interposer"),
        }
    }

    pub fn faults(&self) -> &FaultProxy {
        match &self.between {
            Between::Faults(faults) => faults,
            _ => panic!("this stack was started without a fault proxy"),
        }
    }

    /// Waits until every worker of the Envoy works by the newest policy: one alone may be a tick behind the others.
    pub async fn policy_in_force(&self) {
        let pool = self.ledger.pool();
        let newest = sqlx::query_scalar("select policy from revision").fetch_one(pool).await;
        let newest: i64 = newest.expect("the revision");
        eventually("the policy is in force", Duration::from_secs(15), || async {
            let least: i64 = sqlx::query_scalar("select policy_revision from envoy").fetch_one(pool).await?;
            ensure!(least >= newest, "{least} of {newest}");
            Ok(())
        })
        .await;
    }

    /// The Envoy has its clusters, and the gate uses them.
    async fn models_usable(&self) {
        let scene = self.scene("warm-up").await;
        eventually("the first request is served", Duration::from_secs(20), || async {
            let reply = scene.chat(json!({})).await?;
            let status = reply.status;
            ensure!(status == 200, "{status}: {}", reply.text().await?);
            Ok(())
        })
        .await;
    }
}

async fn provider(tls_name: Option<&'static str>) -> (Provider, Option<String>) {
    let Some(name) = tls_name else {
        let script = Script::new().require_bearer(PROVIDER_SECRET);
        return (Provider::start(script).await.expect("a provider"), None);
    };
    let ca = TestCa::new().expect("a CA");
    let listen = Listen { tls: Some(ca.server(&[name]).expect("a certificate")), ..Listen::default() };
    let provider = Provider::start_on(listen, Script::new().require_bearer(PROVIDER_SECRET)).await.expect("a provider");
    (provider, Some(ca.pem()))
}

async fn seed(admin: &Admin, provider: &Provider, tls_name: Option<&str>, ca: Option<&str>) -> anyhow::Result<()> {
    let base = match tls_name {
        Some(_) => format!("https://localhost:{}/v1", provider.addr().port()),
        None => provider.base_url(),
    };
    admin.provider("scripted", &base, ca).await?;
    admin.credential("scripted-account", "scripted", PROVIDER_SECRET).await?;
    for model in [CHAT, EMBED] {
        admin.price("scripted", model, "2.50", "0.25", "10.00").await?;
        admin.model(model, "scripted", model, "scripted-account").await?;
    }
    admin.model(ALIAS, "scripted", CHAT, "scripted-account").await?;
    Ok(())
}

async fn repoint(ledger: &Ledger, provider: &Provider) {
    let sql = "update provider set base_url = $1 where name = 'scripted'";
    sqlx::query(sql).bind(provider.base_url()).execute(ledger.pool()).await.expect("the provider moves");
    let sql = "update revision set revision = revision + 1, policy = revision + 1";
    sqlx::query(sql).execute(ledger.pool()).await.expect("the revision rises");
    sqlx::query("notify sluicegate").execute(ledger.pool()).await.expect("a notification");
}

/// The bootstrap that users get, with ports of our own.
fn envoy_config(program: PathBuf, listen: SocketAddr, control: SocketAddr) -> EnvoyConfig {
    let path = tools::workspace().join("envoy/managed.yaml");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let admin = SocketAddr::from(([127, 0, 0, 1], tools::free_port()));
    let bootstrap = replace_once(&text, "port_value: 9901", &format!("port_value: {}", admin.port()));
    let bootstrap = replace_once(&bootstrap, "port_value: 18000", &format!("port_value: {}", control.port()));
    let env = [("SLUICEGATE_NODE_TOKEN", NODE_TOKEN), ("SLUICEGATE_SEAL_KEY", SEAL_KEY)];
    let env = env.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec();
    EnvoyConfig { program, bootstrap, listen, admin, env, folder: tools::folder("envoy"), concurrency: 2 }
}

fn replace_once(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "the bootstrap says `{from}` once");
    text.replace(from, to)
}

/// One test's corner of a stack: an org and a key of its own, and requests that carry its tag to the provider.
#[derive(Debug)]
pub struct Scene<'a> {
    pub stack: &'a Stack,
    /// Sent as `OpenAI-Project`, which reaches the provider untouched.
    pub tag: String,
    pub key: NewKey,
}

impl<'a> Scene<'a> {
    /// `more` goes into the key, such as `{"models": [..]}`.
    pub async fn new(stack: &'a Stack, name: &str, more: Value) -> Scene<'a> {
        let tag = format!("{name}-{}", uuid::Uuid::now_v7().simple());
        stack.admin.org(&tag).await.expect("an org");
        let key = stack.admin.key(&tag, "key", more).await.expect("a key");
        let scene = Scene { stack, tag, key };
        scene.known().await;
        scene
    }

    /// The Envoy has heard of the key.
    async fn known(&self) {
        eventually("the Envoy knows the key", Duration::from_secs(5), || async {
            let call = Call::get("/v1/models").bearer(&self.key.secret);
            let status = send(Http::H1, self.addr(), call).await?.status;
            ensure!(status == 200, "{status}");
            Ok(())
        })
        .await;
    }

    pub fn addr(&self) -> SocketAddr {
        self.stack.envoy.addr()
    }

    /// Requests of this scene get this answer from now on.
    pub fn answer(&self, answer: impl Into<Answer>) {
        self.rule(Rule::any().answer(answer));
    }

    /// A rule for requests of this scene.
    pub fn rule(&self, rule: Rule) {
        self.stack.provider.first(rule.header("openai-project", &self.tag));
    }

    /// A call with this scene's key and tag.
    pub fn call(&self, path: &str, body: impl Into<bytes::Bytes>) -> Call {
        Call::post(path, body).bearer(&self.key.secret).header("openai-project", &self.tag)
    }

    /// A chat request over HTTP/1.1; `more` is merged into the body.
    pub async fn chat(&self, more: Value) -> anyhow::Result<Reply> {
        self.send(Http::H1, self.chat_call(more)).await
    }

    pub fn chat_call(&self, more: Value) -> Call {
        self.call("/v1/chat/completions", chat_body(more).to_string())
    }

    pub async fn send(&self, http: Http, call: Call) -> anyhow::Result<Reply> {
        send(http, self.addr(), call).await
    }

    /// Waits until `n` requests of this scene reached the provider.
    pub async fn provider_saw(&self, n: usize) -> Vec<Recorded> {
        let tag = self.tag.clone();
        let mine = move |r: &Recorded| r.header("openai-project") == Some(&tag);
        let wait = self.stack.provider.wait_for_those(n, mine);
        tokio::time::timeout(Duration::from_secs(15), wait).await.expect("the provider gets the requests")
    }
}

/// A chat request's body, with `more` merged into it.
pub fn chat_body(more: Value) -> Value {
    let mut body = json!({"model": CHAT, "messages": [{"role": "user", "content": "Say hello."}]});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    body
}
