//! ADS over tonic: one task per stream around a [`Machine`].

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use envoy_types::pb::envoy::config::core::v3::{Node, node::UserAgentVersionType};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
    aggregated_discovery_service_server::{AggregatedDiscoveryService, AggregatedDiscoveryServiceServer},
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

use super::listener::ListenerConfig;
use super::machine::{Event, Kind, Machine, Request, Response};
use super::ready::{ClustersReady, Entry, Warm, Warming};
use super::resources::Resources;
use super::retain::Retained;
use super::topology::Topology;

/// Older Envoys crash when clients leave while the filter resumes their requests.
const OLDEST_ENVOY: (u32, u32, u32) = (1, 38, 2);

/// Who may open a stream.
#[tonic::async_trait]
pub trait Authenticate: Send + Sync + 'static {
    /// By the metadata of the request that opens the stream.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` for an unknown one, `UNAVAILABLE` when that cannot be known now.
    async fn authenticate(&self, metadata: &MetadataMap) -> Result<Lost, Status>;
}

/// Ends when who opened the stream may not have it any more, with what to tell them.
pub type Lost = Pin<Box<dyn Future<Output = Status> + Send>>;

/// Builds resources from topologies and hands them to all streams.
#[derive(Debug)]
pub struct Publisher {
    retained: Mutex<Retained>,
    resources: watch::Sender<Arc<Resources>>,
}

/// The ADS service.
#[derive(Clone)]
pub struct Ads {
    resources: watch::Receiver<Arc<Resources>>,
    ready: ClustersReady,
    authenticate: Arc<dyn Authenticate>,
    stop: CancellationToken,
}

impl Publisher {
    /// Serves the listener alone until the first [`Self::publish`].
    pub fn new(listener: &ListenerConfig) -> Self {
        let resources = Resources::new(listener);
        Self { retained: Mutex::default(), resources: watch::Sender::new(Arc::new(resources)) }
    }

    /// The clusters of a new policy; those of past ones stay until [`Self::sweep`] finds them unused.
    pub fn publish(&self, topology: Topology) {
        let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        retained.replace(topology);
        self.send(&retained);
    }

    /// Call it every minute or so. `enforced` is the least policy revision that any connected Envoy enforces.
    pub fn sweep(&self, enforced: Option<u64>) {
        let mut retained = self.retained.lock().unwrap_or_else(PoisonError::into_inner);
        if retained.sweep(enforced, Instant::now()) {
            self.send(&retained);
        }
    }

    fn send(&self, retained: &Retained) {
        self.resources.send_modify(|resources| *resources = Arc::new(resources.with(&retained.topology())));
    }

    /// The service that serves what this publishes. `stop` ends its streams; Envoys then connect again, elsewhere.
    pub fn service(&self, ready: ClustersReady, authenticate: Arc<dyn Authenticate>, stop: CancellationToken) -> Ads {
        Ads { resources: self.resources.subscribe(), ready, authenticate, stop }
    }
}

impl std::fmt::Debug for Ads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ads").finish_non_exhaustive()
    }
}

impl Ads {
    /// As a tonic service. An inline filter and 3,000 clusters are well over the default message size.
    pub fn into_server(self) -> AggregatedDiscoveryServiceServer<Self> {
        AggregatedDiscoveryServiceServer::new(self).max_encoding_message_size(usize::MAX)
    }
}

type Outbound = ReceiverStream<Result<DiscoveryResponse, Status>>;
type NoDelta = Pin<Box<dyn tokio_stream::Stream<Item = Result<DeltaDiscoveryResponse, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for Ads {
    type StreamAggregatedResourcesStream = Outbound;
    type DeltaAggregatedResourcesStream = NoDelta;

    async fn stream_aggregated_resources(
        &self,
        request: tonic::Request<Streaming<DiscoveryRequest>>,
    ) -> Result<tonic::Response<Outbound>, Status> {
        let lost = self.authenticate.authenticate(request.metadata()).await?;
        let (outbound, receiver) = mpsc::channel(4);
        tokio::spawn(self.clone().run(request.into_inner(), lost, outbound));
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }

    async fn delta_aggregated_resources(
        &self,
        _: tonic::Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<tonic::Response<NoDelta>, Status> {
        Err(Status::unimplemented("set api_type: GRPC in ads_config; delta is not served"))
    }
}

impl Ads {
    async fn run(
        mut self,
        mut inbound: Streaming<DiscoveryRequest>,
        lost: Lost,
        outbound: mpsc::Sender<Result<DiscoveryResponse, Status>>,
    ) {
        // The first request names the node; without one there is nobody to serve.
        let Ok(Some(first)) = inbound.message().await else { return };
        let node = first.node.clone().unwrap_or_default();
        if let Err(refused) = check_node(&node) {
            tracing::warn!(node = node.id, reason = refused.message(), "Envoy refused");
            let _ = outbound.send(Err(refused)).await;
            return;
        }
        tracing::info!(node = node.id, "Envoy connected for xDS");
        let resources = self.resources.borrow_and_update().clone();
        let mut stream = Stream {
            node: node.id.clone(),
            machine: Machine::new(resources),
            warming: Warming::default(),
            entry: self.ready.enter(&node.id),
            outbound,
        };
        let ended = tokio::select! {
            ended = self.serve(&mut stream, first, &mut inbound) => ended,
            lost = lost => Err(lost),
        };
        if let Err(status) = ended {
            let _ = stream.outbound.send(Err(status)).await;
        }
        tracing::info!(node = node.id, "Envoy's xDS stream ended");
    }

    async fn serve(
        &mut self,
        stream: &mut Stream,
        first: DiscoveryRequest,
        inbound: &mut Streaming<DiscoveryRequest>,
    ) -> Result<(), Status> {
        stream.on_request(first).await?;
        loop {
            let warm_at = stream.tell_ready();
            tokio::select! {
                () = self.stop.cancelled() => return Err(Status::unavailable("this control plane is stopping; connect again")),
                message = inbound.message() => match message? {
                    Some(request) => stream.on_request(request).await?,
                    None => return Ok(()),
                },
                changed = self.resources.changed() => {
                    changed.map_err(|_| Status::unavailable("this control plane is stopping; connect again"))?;
                    let resources = self.resources.borrow_and_update().clone();
                    stream.on_snapshot(resources).await?;
                }
                () = sleep_until(warm_at) => {}
            }
        }
    }
}

/// Never, without a time.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

struct Stream {
    node: String,
    machine: Machine,
    warming: Warming,
    entry: Entry,
    outbound: mpsc::Sender<Result<DiscoveryResponse, Status>>,
}

impl Stream {
    async fn on_request(&mut self, request: DiscoveryRequest) -> Result<(), Status> {
        // Envoy asks only for what the bootstrap and our own resources tell it to ask for.
        let Some(kind) = Kind::from_url(&request.type_url) else {
            tracing::warn!(node = self.node, type_url = request.type_url, "asked for a type that is not served");
            return Ok(());
        };
        let starts = kind == Kind::Listener && request.version_info.is_empty() && request.response_nonce.is_empty();
        if starts {
            self.warming.asked_for_listeners(Instant::now());
        }
        let (event, response) = self.machine.on_request(Request {
            kind,
            version: request.version_info,
            nonce: request.response_nonce,
            names: request.resource_names,
            error: request.error_detail.map(|e| redact(&e.message)),
        });
        if let Some(event) = event {
            self.on_event(event);
        }
        match response {
            Some(response) => self.send(response).await,
            None => Ok(()),
        }
    }

    async fn on_snapshot(&mut self, resources: Arc<Resources>) -> Result<(), Status> {
        for response in self.machine.on_snapshot(resources) {
            self.send(response).await?;
        }
        Ok(())
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Restated { kind: Kind::Cluster, version } => self.warming.restated(version, Instant::now()),
            Event::Acked { kind: Kind::Cluster, version } => self.warming.acked(version, Instant::now()),
            Event::Restated { .. } | Event::Acked { .. } => {}
            Event::Refused { kind, version, message } => {
                metrics::counter!("sluicegate_xds_refused_total", "type" => format!("{kind:?}")).increment(1);
                tracing::error!(node = self.node, ?kind, version, message, "Envoy refused its configuration");
            }
        }
    }

    /// Publishes what this stream has the clusters for; returns when that will change by itself.
    fn tell_ready(&self) -> Option<Instant> {
        let resources = self.machine.resources();
        match self.warming.of(&resources.of(Kind::Cluster)?.version, Instant::now()) {
            Warm::Yes => {
                self.entry.set(Some(resources.revision));
                None
            }
            Warm::At(at) => Some(at),
            Warm::NotInUse => None,
        }
    }

    async fn send(&self, response: Response) -> Result<(), Status> {
        let Response { kind, version, nonce, resources } = response;
        tracing::debug!(node = self.node, ?kind, version, resources = resources.len(), "xDS sent");
        let type_url = kind.url().to_owned();
        let response = DiscoveryResponse { version_info: version, nonce, type_url, resources, ..Default::default() };
        self.outbound.send(Ok(response)).await.map_err(|_| Status::cancelled("the Envoy has left"))
    }
}

fn check_node(node: &Node) -> Result<(), Status> {
    if node.id.is_empty() {
        return Err(Status::invalid_argument("set a node id that is unique to this process (--service-node)"));
    }
    let Some(UserAgentVersionType::UserAgentBuildVersion(build)) = &node.user_agent_version_type else {
        return Ok(());
    };
    let Some(version) = &build.version else { return Ok(()) };
    let (major, minor, patch) = (version.major_number, version.minor_number, version.patch);
    if (major, minor, patch) < OLDEST_ENVOY {
        let (a, b, c) = OLDEST_ENVOY;
        return Err(Status::failed_precondition(format!(
            "Envoy {major}.{minor}.{patch} is too old: {a}.{b}.{c} or newer"
        )));
    }
    Ok(())
}

/// Envoy's reasons can end in a dump of the resource; only the reason is for the log.
fn redact(message: &str) -> String {
    let reason = message.split("goo.gle/debug").next().unwrap_or_default();
    reason.chars().take(500).collect()
}
