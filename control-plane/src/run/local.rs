//! Starts the parts in order, and stops them in the other.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use zeroize::Zeroizing;

use super::data::Data;
use super::envoy::{Envoy, EnvoyConfig};
use super::ports::{self, Port};
use super::postgres::{Place, Postgres};
use super::report::Report;
use super::setup::{self, Model};
use super::tools::Tools;
use super::{RunArgs, demo};
use crate::admin;
use crate::credentials::Secret;
use crate::serve::{self, Config, ControlPlane};
use crate::store::{NewNodeToken, Reachable, Seeds};
use crate::tls::{Generated, Transport};
use crate::xds::{ListenerConfig, WasmCode};

/// How long an Envoy may take to enforce the policy.
const ENFORCED_WITHIN: Duration = Duration::from_secs(60);

/// What runs and must be stopped.
#[derive(Debug, Default)]
pub struct Parts {
    postgres: Option<Postgres>,
    plane: Option<ControlPlane>,
    provider: Option<JoinHandle<()>>,
    envoy: Option<Envoy>,
}

/// What there is to send requests to.
#[derive(Debug)]
pub struct Local {
    pub data: Data,
    pub admin: Arc<admin::Service>,
    pub envoy: SocketAddr,
    pub envoy_admin: SocketAddr,
    pub http: SocketAddr,
    /// `None` where it is not of our own.
    pub postgres: Option<SocketAddr>,
    /// What the requests are sent with: `None` where it could not be made.
    pub key: Option<Zeroizing<String>>,
    /// What to send them to, in the order in which to try.
    pub models: Vec<Model>,
}

/// The ports of one local run.
#[derive(Clone, Copy, Debug)]
struct Ports {
    envoy: Port,
    envoy_admin: Port,
    grpc: Port,
    http: Port,
}

impl Parts {
    /// Which part ended by itself, how, and where its log is, once one has.
    pub async fn died(&mut self, data: &Data) -> String {
        let Self { postgres, plane, envoy, .. } = self;
        let (part, how, log) = tokio::select! {
            how = async { match postgres { Some(p) => p.ended().await, None => std::future::pending().await } } =>
                ("Postgres", how, "postgres/postgres.log"),
            how = async { match plane { Some(p) => p.ended().await, None => std::future::pending().await } } => {
                let how = how.map_or_else(|error| format!("{:#}", anyhow::Error::from(error)), |()| "done".to_owned());
                ("the control plane", how, "control-plane.log")
            }
            how = async { match envoy { Some(e) => e.ended().await, None => std::future::pending().await } } =>
                ("Envoy", how, "envoy.log"),
        };
        format!("{part} ended by itself ({how}); its log: {}", data.path(log).display())
    }

    /// Envoy first, so that its last records are taken; Postgres last.
    pub async fn stop(&mut self) {
        if let Some(envoy) = self.envoy.take() {
            envoy.stop().await;
        }
        if let Some(provider) = self.provider.take() {
            provider.abort();
        }
        if let Some(plane) = self.plane.take()
            && let Err(error) = plane.stop().await
        {
            tracing::warn!(%error, "the control plane did not stop cleanly");
        }
        if let Some(postgres) = self.postgres.take() {
            postgres.stop().await;
        }
    }
}

/// Starts everything; each part is in `parts` as soon as it runs.
pub async fn start(parts: &mut Parts, args: RunArgs, data: Data, report: &Report) -> anyhow::Result<Local> {
    let tools = Tools::find();
    let ports = Ports::choose(&args, report)?;
    let database_url = database(parts, &args, &tools, &data, report).await?;

    let began = Instant::now();
    let tls = Generated::new(&["localhost", "127.0.0.1"])?;
    let ca = data.path("ca.pem");
    std::fs::write(&ca, &tls.ca).with_context(|| ca.display().to_string())?;
    let config = config(&data, database_url, &ports, Transport::Tls(tls.identity), args.wasm.as_deref())?;
    let plane = ControlPlane::start(config).await?;
    let (grpc, http) = (plane.grpc, plane.http);
    let admin = Arc::clone(&plane.admin);
    parts.plane = Some(plane);
    report.step(
        "control plane",
        &format!("Admin API http://{http}, xDS and DataPlane https://{grpc}"),
        began.elapsed(),
    );

    let (provider, secret) = provider(parts, &data, report).await?;
    let models = models(&admin, provider, &secret, report).await;
    let key = setup::key(&admin, &data).await;
    let key = key.map_err(|error| report.line(&format!("  no key for the requests: {error:#}"))).ok();
    let (token, seal_key) = node_token(&admin, &data).await?;

    let began = Instant::now();
    let node = format!("local-{}", uuid::Uuid::now_v7());
    let envoy = Envoy::start(
        &tools,
        &EnvoyConfig {
            directory: data.directory().to_owned(),
            node: node.clone(),
            admin: ports.envoy_admin.address,
            control_plane: grpc,
            ca: Some(ca),
            workers: args.workers,
            node_token: token,
            seal_key,
        },
    )?;
    let pid = envoy.id().unwrap_or_default();
    parts.envoy = Some(envoy);
    report.step(
        "envoy",
        &format!(
            "clients http://{}, its admin page http://{} (process {pid})",
            ports.envoy.address, ports.envoy_admin.address
        ),
        began.elapsed(),
    );
    enforced(parts, &admin, &node, &data, report).await?;
    let (envoy, envoy_admin) = (ports.envoy.address, ports.envoy_admin.address);
    let postgres = parts.postgres.as_ref().map(Postgres::address);
    Ok(Local { data, admin, envoy, envoy_admin, http, postgres, key, models })
}

impl Ports {
    fn choose(args: &RunArgs, report: &Report) -> anyhow::Result<Self> {
        let choose = |wanted, usual, flag| -> anyhow::Result<Port> {
            let port = ports::choose(wanted, usual, flag)?;
            if let Some(usual) = port.instead_of {
                let now = port.address.port();
                report.line(&format!(
                    "  port {usual} is taken: {now} instead (choose with {flag} or QUICKSTART_ARGS=\"{flag} ...\")"
                ));
            }
            Ok(port)
        };
        Ok(Self {
            envoy: choose(args.envoy_port, 10000, "--envoy-port")?,
            envoy_admin: choose(args.envoy_admin_port, 9901, "--envoy-admin-port")?,
            grpc: choose(args.grpc_port, 18000, "--grpc-port")?,
            http: choose(args.http_port, 18001, "--http-port")?,
        })
    }
}

async fn database(
    parts: &mut Parts,
    args: &RunArgs,
    tools: &Tools,
    data: &Data,
    report: &Report,
) -> anyhow::Result<Zeroizing<String>> {
    if let Some(url) = &args.database_url {
        report.line("  postgres       yours (DATABASE_URL)");
        return Ok(Zeroizing::new(url.clone()));
    }
    let began = Instant::now();
    let address = data.port("postgres")?;
    let directory = data.path("postgres");
    let password = data.secret("postgres-password")?;
    let place = Place { directory: directory.clone(), listen: address, password, settings: Vec::new() };
    let postgres = Postgres::start(tools, &place).await?;
    let url = Zeroizing::new(postgres.url().to_owned());
    parts.postgres = Some(postgres);
    report.step("postgres", &format!("{address}, data in {}", directory.display()), began.elapsed());
    Ok(url)
}

fn config(
    data: &Data,
    database_url: Zeroizing<String>,
    ports: &Ports,
    grpc_transport: Transport,
    wasm: Option<&Path>,
) -> anyhow::Result<Config> {
    let module = serve::load_filter(wasm)?;
    // Named by its content: Envoy reads it by path.
    let file = data.path(&format!("filter-{}.wasm", hex::encode(Sha256::digest(&module).get(..6).unwrap_or_default())));
    std::fs::write(&file, &module).with_context(|| file.display().to_string())?;
    let admin_token = Secret::new(data.secret("admin-token")?.to_string());
    Ok(Config {
        database_url,
        keyring: data.keyring()?,
        seeds: Seeds { admin_token: Some(admin_token), ..Default::default() },
        grpc: ports.grpc.address,
        grpc_transport,
        http: ports.http.address,
        http_transport: Transport::Plaintext,
        listener: ListenerConfig {
            listen: ports.envoy.address,
            access_log: data.path("access.log").display().to_string(),
            wasm: WasmCode::File(file.display().to_string()),
            trusted_hops: 0,
            tls: None,
        },
    })
}

/// Where the demo provider listens, and the file with the credential it wants.
async fn provider(parts: &mut Parts, data: &Data, report: &Report) -> anyhow::Result<(SocketAddr, std::path::PathBuf)> {
    let began = Instant::now();
    const SECRET: &str = "demo-provider-credential";
    let router = demo::router(data.secret(SECRET)?);
    let socket = TcpListener::bind(data.port("demo-provider")?).await?;
    let address = socket.local_addr()?;
    parts.provider = Some(tokio::spawn(async move {
        if let Err(error) = axum::serve(socket, router).await {
            tracing::error!(%error, "the demo provider failed");
        }
    }));
    report.step("demo provider", &format!("http://{address}"), began.elapsed());
    Ok((address, data.path(SECRET)))
}

/// The models that could be configured. What somebody made of this database may stand against it, and is theirs to mend.
async fn models(admin: &admin::Service, provider: SocketAddr, secret: &Path, report: &Report) -> Vec<Model> {
    let openai = setup::apply_openai(admin).await;
    let openai = openai.unwrap_or_else(|error| {
        report.line(&format!("  OpenAI is left out: its document cannot be applied: {error:#}"));
        None
    });
    let demo = setup::apply_demo(admin, provider, secret).await;
    let demo = demo.map_err(|error| report.line(&format!("  the demo document cannot be applied: {error:#}"))).ok();
    openai.into_iter().chain(demo).collect()
}

/// The token that was kept, while the database knows it; otherwise a new one, with its seal key.
async fn node_token(admin: &admin::Service, data: &Data) -> anyhow::Result<(Zeroizing<String>, Zeroizing<String>)> {
    const TOKEN: &str = "node-token";
    const SEAL_KEY: &str = "seal-key";
    if let (Some(token), Some(seal_key)) = (data.kept(TOKEN), data.kept(SEAL_KEY)) {
        let hash = Sha256::digest(token.as_bytes()).into();
        if admin.store().node_by_token(&hash).await?.is_some() {
            return Ok((token, seal_key));
        }
    }
    let name = format!("local-{}", uuid::Uuid::now_v7());
    let new = NewNodeToken { name, group: "default".to_owned(), expires_at: None };
    let issued = admin.create_node_token(setup::ACTOR, &new).await?;
    data.keep(TOKEN, &issued.token)?;
    data.keep(SEAL_KEY, &issued.seal_key)?;
    Ok((Zeroizing::new(issued.token), Zeroizing::new(issued.seal_key)))
}

/// Waits until the Envoy `node` enforces the policy in force. Says so where it does not; only a part that died is an error.
async fn enforced(
    parts: &mut Parts,
    admin: &admin::Service,
    node: &str,
    data: &Data,
    report: &Report,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let Some(Reachable { revision, .. }) = admin.store().reachable().await? else {
        report.line("  policy         none: nothing is configured yet");
        return Ok(());
    };
    let wait = async {
        loop {
            let envoys = admin.envoys(None).await?;
            let ours = envoys.iter().find(|envoy| envoy.node == node);
            if let Some(message) = ours.and_then(|envoy| envoy.refused_message.as_deref()) {
                bail!("Envoy refused the policy: {message}");
            }
            if ours.is_some_and(|envoy| envoy.ready && envoy.policy_revision.cast_unsigned() >= revision) {
                return Ok(());
            }
            // The store has no event for what an Envoy reports.
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    };
    tokio::select! {
        done = tokio::time::timeout(ENFORCED_WITHIN, wait) => {
            let done = done.with_context(|| format!("no Envoy enforces it after {ENFORCED_WITHIN:?}")).flatten();
            match done {
                Ok(()) => report.step("policy", &format!("revision {revision}, enforced by 1 of 1 Envoys"), began.elapsed()),
                Err(error) => report.line(&format!("  policy         revision {revision} is not enforced: {error:#}")),
            }
        }
        died = parts.died(data) => bail!("{died}"),
    }
    Ok(())
}
