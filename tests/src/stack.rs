//! How a whole Sluicegate is put together. Whoever changes the bootstrap changes this file.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use scripted_provider::{Listen, Provider, Script, TestCa};
use serde_json::json;
use test_postgres::Database;
use tokio::sync::OnceCell;

use crate::admin::Admin;
use crate::control_plane::{ControlPlane, Options};
use crate::envoy::{Envoy, EnvoyConfig};
use crate::fault::FaultProxy;
use crate::interpose::Interposer;
use crate::ledger::Ledger;
use crate::run::eventually;
use crate::scene::Scene;
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

/// Another control plane on a stack's database, with an Envoy that talks to it alone.
#[derive(Debug)]
pub struct Replica {
    pub envoy: Envoy,
    pub control: ControlPlane,
    /// Between the two.
    pub interposer: Interposer,
}

/// What an Envoy proves itself with.
#[derive(Clone, Debug)]
pub struct NodeSecrets {
    pub token: String,
    pub seal_key: String,
}

impl Default for NodeSecrets {
    fn default() -> Self {
        Self { token: NODE_TOKEN.to_owned(), seal_key: SEAL_KEY.to_owned() }
    }
}

impl Stack {
    /// Waits until the Envoy has its state, which may be that it has no model at all.
    pub async fn replica(&self, secrets: NodeSecrets) -> Replica {
        let replica = self.replica_with(secrets, Options::default()).await;
        replica.envoy.ready().await;
        replica
    }

    /// The same, without waiting.
    pub async fn replica_with(&self, secrets: NodeSecrets, options: Options) -> Replica {
        let listen = SocketAddr::from(([127, 0, 0, 1], tools::free_port()));
        let control = ControlPlane::start(&self.database, listen, options).await;
        let interposer = Interposer::start(control.grpc()).await;
        let mut config = envoy_config(tools::envoy(), listen, interposer.addr());
        config.env = [("SLUICEGATE_NODE_TOKEN", secrets.token), ("SLUICEGATE_SEAL_KEY", secrets.seal_key)]
            .map(|(name, value)| (name.to_owned(), value))
            .to_vec();
        let envoy = Envoy::start(config).await;
        Replica { envoy, control, interposer }
    }

    /// A node token of a group.
    pub async fn node_token(&self, name: &str, group: &str) -> NodeSecrets {
        let body = json!({"name": name, "group": group});
        let issued = self.admin.post("/v1/node-tokens", body).await.expect("a node token");
        let text = |field: &str| issued.get(field).and_then(|v| v.as_str()).expect("a secret").to_owned();
        NodeSecrets { token: text("token"), seal_key: text("seal_key") }
    }

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
        let control =
            ControlPlane::start(&database, listen, Options { filter: wanted.filter, ..Options::default() }).await;
        let between = if wanted.interposer {
            Between::Interposer(Interposer::start(control.grpc()).await)
        } else if wanted.faults {
            Between::Faults(FaultProxy::start(control.grpc()).await)
        } else {
            Between::Nothing
        };
        let (provider, ca) = provider(wanted.tls_name).await;
        let admin = Admin::new(control.http(), ADMIN_TOKEN);
        let ledger = Ledger::new(database.pool().await);
        let known = admin.get("/v1/providers").await.expect("the providers");
        if known.to_string().contains("\"scripted\"") {
            // A database with a past: its provider's port is gone.
            repoint(&ledger, &provider).await;
        } else {
            seed(&admin, &provider, wanted.tls_name, ca.as_deref()).await.expect("the seed is accepted");
        }
        let to_control = match &between {
            Between::Nothing => control.grpc(),
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
