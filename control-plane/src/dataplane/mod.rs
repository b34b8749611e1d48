//! `Sync` and `Flow`: state down to the Envoys, usage up. `docs/dataplane.md` explains the messages.
//!
//! | module | what it does |
//! |---|---|
//! | [`auth`] | node tokens |
//! | [`sync`] | one Sync stream: what [`crate::publisher`] publishes, in the order of core's `Feed` |
//! | [`offer`] | when a stream is offered which policy |
//! | [`fence`] | one live stream per subscriber |
//! | [`roster`] | what Envoys say of themselves |
//! | [`flow`], [`ledger`], [`prices`] | usage records, booked once and checked |
//! | [`resolve`] | who the holder of a token is |

mod auth;
mod fence;
mod flow;
mod hello;
mod ledger;
mod metric;
mod offer;
mod prices;
mod resolve;
mod roster;
mod sealed;
mod sync;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use sluicegate_core::proto::dataplane::{FlowDown, FlowUp, SyncDown, SyncUp};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

pub use auth::{Authenticator, Credentials, NodeIdentity};
pub(crate) use hello::{OLDEST_ENVOY, version as envoy_version};

use crate::credentials::Keyring;
use crate::proto::data_plane_server::{DataPlane, DataPlaneServer};
use crate::publisher::Publisher;
use crate::store::Store;

/// HTTP/2 pings for a server of these services: an Envoy that vanished without a word is noticed after both.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long an Envoy has to answer a ping.
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The first message of a stream must come within this.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Messages come in sizes that a filter makes: 64 KB, with room for a newer one.
const MAX_MESSAGE_UP: usize = 256 << 10;

/// Which policy revision the Envoys of a node have all clusters for.
pub trait ClustersReady: Send + Sync + 'static {
    /// Follows one node. `None` while it has no xDS stream, or one that has not acknowledged any clusters yet.
    fn watch(&self, node: &str) -> watch::Receiver<Option<u64>>;
    /// Whether the node has an xDS stream, that is, whether its clusters are ours to announce.
    fn has_stream(&self, node: &str) -> bool;
}

/// What the services work with.
#[derive(Clone)]
pub struct Parts {
    pub store: Store,
    pub publisher: Publisher,
    pub keyring: Arc<Keyring>,
    pub authenticator: Authenticator,
    pub clusters: Arc<dyn ClustersReady>,
    /// Ends every stream; Envoys then connect again, elsewhere.
    pub stop: CancellationToken,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").finish_non_exhaustive()
    }
}

/// The DataPlane service of one replica. Starts its background tasks, which end with it.
pub fn service(parts: Parts) -> DataPlaneServer<Service> {
    let ledger = ledger::Ledger::spawn(parts.store.clone(), parts.publisher.clone());
    let resolver = resolve::Resolver::new(parts.store.clone(), parts.publisher.clone(), parts.keyring);
    let sync = sync::Context {
        store: parts.store.clone(),
        publisher: parts.publisher,
        clusters: parts.clusters,
        fence: fence::Fence::default(),
        roster: roster::Roster::spawn(parts.store),
    };
    let service = Service { authenticator: parts.authenticator, stop: parts.stop, ledger, resolver, sync };
    DataPlaneServer::new(service).max_decoding_message_size(MAX_MESSAGE_UP)
}

/// See [`service`].
#[derive(Clone, Debug)]
pub struct Service {
    authenticator: Authenticator,
    stop: CancellationToken,
    ledger: ledger::Ledger,
    resolver: resolve::Resolver,
    sync: sync::Context,
}

type Down<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Messages of one stream on their way to the socket. What does not fit waits where it is cheap: unmade.
const QUEUE: usize = 4;

#[tonic::async_trait]
impl DataPlane for Service {
    type SyncStream = Down<SyncDown>;
    type FlowStream = Down<FlowDown>;

    async fn sync(&self, request: Request<Streaming<SyncUp>>) -> Result<Response<Self::SyncStream>, Status> {
        let credentials = self.authenticator.authenticate(request.metadata()).await?;
        let (context, node) = (self.sync.clone(), Arc::clone(&credentials.node));
        let up = request.into_inner();
        Ok(self.stream(credentials, move |down| async move { sync::run(context, node, up, down).await }))
    }

    async fn flow(&self, request: Request<Streaming<FlowUp>>) -> Result<Response<Self::FlowStream>, Status> {
        let credentials = self.authenticator.authenticate(request.metadata()).await?;
        let (node, up) = (Arc::clone(&credentials.node), request.into_inner());
        let context = flow::Context { ledger: self.ledger.clone(), resolver: self.resolver.clone(), node };
        Ok(self.stream(credentials, move |down| async move { flow::run(context, up, down).await }))
    }
}

impl Service {
    /// Runs a stream in a task of its own; its error is the stream's last word.
    fn stream<T, F>(
        &self,
        credentials: Credentials,
        run: impl FnOnce(mpsc::Sender<Result<T, Status>>) -> F,
    ) -> Response<Down<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let (down, messages) = mpsc::channel(QUEUE);
        let (stream, stop) = (run(down.clone()), self.stop.clone());
        tokio::spawn(async move {
            let gone = down.clone();
            let ended = tokio::select! {
                ended = stream => ended,
                () = stop.cancelled() => Err(Status::unavailable("this control plane is stopping; connect again")),
                lost = credentials.lost() => Err(lost),
                () = gone.closed() => Ok(()),
            };
            if let Err(status) = ended {
                tracing::debug!(%status, "stream ended");
                let _ = down.send(Err(status)).await;
            }
        });
        Response::new(Box::pin(ReceiverStream::new(messages)))
    }
}

/// What a node may call itself: it is stored, logged and compared.
fn is_node_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 256 && !name.contains(char::is_control)
}
