//! Puts the parts together, on their ports.

mod args;
pub(crate) mod filter;
mod http;
pub mod log;
mod node;
mod plaintext;
#[cfg(test)]
mod tests;
mod topology;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum_server::Handle;
use futures::{FutureExt as _, StreamExt as _};
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinSet};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use zeroize::Zeroizing;

pub use args::ServeArgs;
pub use filter::{FilterError, load as load_filter};

use crate::admin;
use crate::credentials::{Keyring, KeyringError};
use crate::dataplane::{self, Authenticator};
use crate::publisher::Publisher;
use crate::store::{Seeds, Store, StoreError, WriteError};
use crate::tls::{self, TlsError, Transport};
use crate::xds::{self, ClustersReady, ListenerConfig};

/// How long requests and streams may take to end once a stop was asked for.
const DRAIN: Duration = Duration::from_secs(5);

/// Everything a control plane is started with.
#[derive(Debug)]
pub struct Config {
    pub database_url: Zeroizing<String>,
    pub keyring: PathBuf,
    /// Tokens for a database that has none.
    pub seeds: Seeds,
    pub grpc: SocketAddr,
    pub grpc_transport: Transport,
    pub http: SocketAddr,
    pub http_transport: Transport,
    pub listener: ListenerConfig,
}

/// Why a control plane does not start, or ended. What caused it is its source: print the chain (`{:#}` of an `anyhow::Error`).
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}, choose another address with {flag}")]
    Port { address: SocketAddr, flag: &'static str, source: io::Error },
    #[error("cannot use the database that --database-url (DATABASE_URL) names")]
    Database(#[from] StoreError),
    #[error("cannot use the keyring that --keyring (SLUICEGATE_KEYRING) names")]
    Keyring(#[from] KeyringError),
    #[error("cannot prepare the database")]
    Prepare(#[from] WriteError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error("the gRPC port failed")]
    Grpc(#[from] tonic::transport::Error),
    #[error("the HTTP port failed")]
    Http(#[source] io::Error),
    #[error("a part of the control plane died")]
    Task(#[from] JoinError),
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    /// Where it really listens.
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    /// What the Admin API does, for callers in this process.
    pub admin: Arc<admin::Service>,
    stop: CancellationToken,
    tasks: JoinSet<Result<(), ServeError>>,
}

impl ControlPlane {
    /// Binds both ports, migrates the database and serves.
    ///
    /// # Errors
    /// With a message that names what to change.
    pub async fn start(config: Config) -> Result<Self, ServeError> {
        tls::install_provider();
        let grpc = bind(config.grpc, "--grpc").await?;
        let http = bind(config.http, "--http").await?;
        let keyring = Arc::new(Keyring::load(&config.keyring)?);
        let store = Store::connect(&config.database_url).await?;
        store.check_keyring(&keyring).await?;
        store.seed(&config.seeds, &keyring).await?;

        let stop = CancellationToken::new();
        let mut plane = Self {
            grpc: grpc.local_addr().map_err(ServeError::Http)?,
            http: http.local_addr().map_err(ServeError::Http)?,
            admin: Arc::new(admin::Service::new(store.clone(), Arc::clone(&keyring))),
            stop,
            tasks: JoinSet::new(),
        };
        plane.serve_grpc(grpc, &config, &store, &keyring)?;
        plane.serve_http(http, &config.http_transport).await?;
        Ok(plane)
    }

    fn serve_grpc(
        &mut self,
        socket: TcpListener,
        config: &Config,
        store: &Store,
        keyring: &Arc<Keyring>,
    ) -> Result<(), ServeError> {
        let (upkeep, stop) = (store.clone().keep_up(Arc::clone(keyring)), self.stop.child_token());
        self.spawn(async move {
            let _ = stop.run_until_cancelled(upkeep).await;
        });
        let publisher = Publisher::spawn(store.clone(), Arc::clone(keyring));
        let clusters = Arc::new(xds::Publisher::new(&config.listener));
        let ready = ClustersReady::default();
        let follow = topology::follow(store.clone(), publisher.subscribe(), Arc::clone(&clusters));
        let stop = self.stop.child_token();
        self.spawn(async move {
            let _ = stop.run_until_cancelled(follow).await;
        });
        let authenticator = Authenticator::new(store.clone(), Arc::clone(keyring));
        let nodes = Arc::new(node::NodeTokens(authenticator.clone()));
        let ads = clusters.service(ready.clone(), nodes, self.stop.child_token()).into_server();
        let dataplane = dataplane::service(dataplane::Parts {
            store: store.clone(),
            publisher,
            keyring: Arc::clone(keyring),
            authenticator,
            clusters: Arc::new(node::Clusters(ready)),
            stop: self.stop.child_token(),
        });
        let mut server = Server::builder()
            .http2_keepalive_interval(Some(dataplane::KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(dataplane::KEEPALIVE_TIMEOUT))
            .tcp_nodelay(true);
        if let Some(tls) = config.grpc_transport.grpc() {
            server = server.tls_config(tls)?;
        }
        let stop = self.stop.child_token();
        let router = server.add_service(ads).add_service(dataplane);
        let sockets = TcpListenerStream::new(socket);
        let stopped = stop.clone().cancelled_owned();
        let serve = match config.grpc_transport {
            Transport::Plaintext => router.serve_with_incoming_shutdown(sockets, stopped).boxed(),
            Transport::Tls(_) => {
                let warned = plaintext::Warned::default();
                let watched = sockets.map(move |socket| socket.map(|socket| warned.watch(socket)));
                router.serve_with_incoming_shutdown(watched, stopped).boxed()
            }
        };
        self.tasks.spawn(async move {
            tokio::select! {
                served = serve => served.map_err(ServeError::Grpc),
                () = after_drain(stop) => Ok(()),
            }
        });
        Ok(())
    }

    async fn serve_http(&mut self, socket: TcpListener, transport: &Transport) -> Result<(), ServeError> {
        let router = http::router(admin::router(Arc::clone(&self.admin)), self.stop.child_token());
        let service = router.into_make_service();
        let socket = socket.into_std().map_err(ServeError::Http)?;
        let handle = Handle::new();
        let tls = transport.http().await?;
        let shutdown = handle.clone();
        let stop = self.stop.child_token();
        self.spawn(async move {
            stop.cancelled().await;
            shutdown.graceful_shutdown(Some(DRAIN));
        });
        self.spawn(http::upkeep(self.stop.child_token()));
        self.tasks.spawn(async move {
            let served = match tls {
                Some(tls) => match axum_server::from_tcp_rustls(socket, tls) {
                    Ok(server) => server.handle(handle).serve(service).await,
                    Err(error) => Err(error),
                },
                None => match axum_server::from_tcp(socket) {
                    Ok(server) => server.handle(handle).serve(service).await,
                    Err(error) => Err(error),
                },
            };
            served.map_err(ServeError::Http)
        });
        Ok(())
    }

    fn spawn(&mut self, part: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(async {
            part.await;
            Ok(())
        });
    }

    /// Until a part of it fails; on its own a control plane does not end.
    ///
    /// # Errors
    /// What failed.
    pub async fn ended(&mut self) -> Result<(), ServeError> {
        match self.tasks.join_next().await {
            Some(ended) => ended?,
            None => Ok(()),
        }
    }

    /// Lets running requests finish and tells streams to connect elsewhere; takes five seconds at most.
    ///
    /// # Errors
    /// What failed on the way.
    pub async fn stop(mut self) -> Result<(), ServeError> {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}

async fn after_drain(stop: CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(DRAIN).await;
}

async fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Port { address, flag, source })
}

/// `sluicegate serve`: until SIGTERM or SIGINT.
///
/// # Errors
/// With a message for whoever started it.
pub async fn run(args: ServeArgs) -> Result<(), ServeError> {
    let config = args.config()?;
    let (grpc, http) = (config.grpc_transport.scheme(), config.http_transport.scheme());
    let mut stop = std::pin::pin!(stop_signal());
    let mut plane = tokio::select! {
        plane = ControlPlane::start(config) => plane?,
        _ = &mut stop => return Ok(()),
    };
    tracing::info!(grpc = format!("{grpc}://{}", plane.grpc), http = format!("{http}://{}", plane.http), "serving");
    tokio::select! {
        ended = plane.ended() => return ended,
        signal = stop => tracing::info!(signal, "stopping"),
    }
    plane.stop().await
}

/// The name of the first signal that asks the process to stop. Caught from the call on, not only from the first poll.
pub fn stop_signal() -> impl Future<Output = &'static str> {
    use tokio::signal::unix::{SignalKind, signal};
    let handlers = signal(SignalKind::terminate()).and_then(|t| Ok((t, signal(SignalKind::interrupt())?)));
    async move {
        let (mut terminate, mut interrupt) = match handlers {
            Ok(handlers) => handlers,
            // No handler, no signal to wait for: the default action still ends the process.
            Err(_) => return std::future::pending().await,
        };
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    }
}
