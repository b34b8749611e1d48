//! What one ADS stream is sent, and what its answers mean. Pure: requests and snapshots in, responses and events out.
//!
//! State of the world: a response holds all resources of its type that the Envoy asked for; a request after it is its
//! ACK (the version it names is now in use) or its NACK (it carries an error, and the version that stays in use).

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::google::protobuf::Any;

use super::resources::Resources;

/// The types we serve, in the order in which a change is sent: what is referred to before what refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Cluster,
    Secret,
    Extension,
    Listener,
}

/// A `DiscoveryRequest`, without its node.
#[derive(Clone, Debug)]
pub struct Request {
    pub kind: Kind,
    /// The version in use, empty for none.
    pub version: String,
    /// Of the response that this answers; empty in the first request of a stream.
    pub nonce: String,
    /// Empty: all of them.
    pub names: Vec<String>,
    /// Why the response was refused.
    pub error: Option<String>,
}

/// A `DiscoveryResponse`.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    pub kind: Kind,
    pub version: String,
    pub nonce: String,
    pub resources: Vec<Any>,
}

/// What a request told us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A reconnecting Envoy has this version since before.
    Restated {
        kind: Kind,
        version: String,
    },
    Acked {
        kind: Kind,
        version: String,
    },
    Refused {
        kind: Kind,
        version: String,
        message: String,
    },
}

/// One stream.
#[derive(Debug)]
pub struct Machine {
    resources: Arc<Resources>,
    clusters: Subscription,
    secrets: Subscription,
    extensions: Subscription,
    listeners: Subscription,
    last_nonce: u64,
}

#[derive(Debug, Default)]
struct Subscription {
    /// `None` until the Envoy asks; empty: all.
    names: Option<BTreeSet<String>>,
    sent: Option<Sent>,
}

#[derive(Debug)]
struct Sent {
    version: String,
    nonce: String,
    names: BTreeSet<String>,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Secret, Self::Extension, Self::Listener];

    pub fn url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
            Self::Extension => "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
        }
    }

    pub fn from_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// The others are asked for by name; an Envoy that names none wants none.
    fn has_wildcard(self) -> bool {
        matches!(self, Self::Cluster | Self::Listener)
    }
}

impl Machine {
    pub fn new(resources: Arc<Resources>) -> Self {
        Self {
            resources,
            clusters: Subscription::default(),
            secrets: Subscription::default(),
            extensions: Subscription::default(),
            listeners: Subscription::default(),
            last_nonce: 0,
        }
    }

    /// The event is `None` for a request that answers nothing: a first one without a version, or one that a newer
    /// response has overtaken.
    pub fn on_request(&mut self, request: Request) -> (Option<Event>, Option<Response>) {
        let kind = request.kind;
        let Request { version, nonce, names, error, .. } = request;
        let subscription = self.subscription(kind);
        let names: BTreeSet<String> = names.into_iter().collect();
        let event = match &mut subscription.sent {
            None if version.is_empty() => None,
            // A stream that answers nothing of ours says what it brings along. Its secrets are sent again anyway: which
            // names it already has is not said.
            None => {
                if kind.has_wildcard() {
                    let restated = Sent { version: version.clone(), nonce: nonce.clone(), names: names.clone() };
                    subscription.sent = Some(restated);
                }
                Some(Event::Restated { kind, version })
            }
            Some(sent) if sent.nonce != nonce => return (None, None),
            Some(sent) => match error {
                Some(message) => Some(Event::Refused { kind, version: sent.version.clone(), message }),
                None => Some(Event::Acked { kind, version: sent.version.clone() }),
            },
        };
        subscription.names = Some(names);
        (event, self.respond(kind))
    }

    /// What changed for this stream, in the order in which it must be sent.
    pub fn on_snapshot(&mut self, resources: Arc<Resources>) -> Vec<Response> {
        self.resources = resources;
        Kind::ALL.into_iter().filter_map(|kind| self.respond(kind)).collect()
    }

    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// A refused version counts as sent: sending it again would be refused again, as fast as the network goes.
    fn respond(&mut self, kind: Kind) -> Option<Response> {
        let resources = Arc::clone(&self.resources);
        let set = resources.of(kind)?;
        let nonce = (self.last_nonce + 1).to_string();
        let subscription = self.subscription(kind);
        let names = subscription.names.clone()?;
        if names.is_empty() && !kind.has_wildcard() {
            return None;
        }
        if subscription.sent.as_ref().is_some_and(|sent| sent.version == set.version && sent.names == names) {
            return None;
        }
        let items = set.items.iter().filter(|(name, _)| names.is_empty() || names.contains(*name));
        let resources = items.map(|(_, resource)| resource.clone()).collect();
        subscription.sent = Some(Sent { version: set.version.clone(), nonce: nonce.clone(), names });
        self.last_nonce += 1;
        Some(Response { kind, version: set.version.clone(), nonce, resources })
    }

    fn subscription(&mut self, kind: Kind) -> &mut Subscription {
        match kind {
            Kind::Cluster => &mut self.clusters,
            Kind::Secret => &mut self.secrets,
            Kind::Extension => &mut self.extensions,
            Kind::Listener => &mut self.listeners,
        }
    }
}
