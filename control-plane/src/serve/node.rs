//! What the xDS side and the DataPlane side know of each other: tokens one way, clusters the other.

use tokio::sync::watch;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::dataplane::{self, Authenticator};
use crate::xds;

/// The same node token opens both channels.
#[derive(Debug)]
pub struct NodeTokens(pub Authenticator);

#[tonic::async_trait]
impl xds::Authenticate for NodeTokens {
    async fn authenticate(&self, metadata: &MetadataMap) -> Result<xds::Lost, Status> {
        let credentials = self.0.authenticate(metadata).await?;
        Ok(Box::pin(async move { credentials.lost().await }))
    }
}

/// A policy waits for its clusters.
#[derive(Debug)]
pub struct Clusters(pub xds::ClustersReady);

impl dataplane::ClustersReady for Clusters {
    fn watch(&self, node: &str) -> watch::Receiver<Option<u64>> {
        self.0.watch(node)
    }

    fn has_stream(&self, node: &str) -> bool {
        self.0.has_stream(node)
    }
}
