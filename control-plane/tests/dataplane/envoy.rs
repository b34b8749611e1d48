//! A control plane on a port of its own, and an Envoy that is none: it applies messages as the filter would and checks, at
//! each one, what must hold of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message as _;
use sluicegate::credentials::Keyring;
use sluicegate::dataplane::{self, Authenticator, ClustersReady, Parts};
use sluicegate::proto::data_plane_client::DataPlaneClient;
use sluicegate::publisher::Publisher;
use sluicegate::store::{NewNodeToken, Store};
use sluicegate_core::noun::Owner;
use sluicegate_core::proto::dataplane as wire;
use sluicegate_core::proto::dataplane::sync_down::M;
use sluicegate_core::seal::SealKey;
use sluicegate_core::state::record::{bucket_of, find, is_sorted};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

/// Long enough for a busy machine; what is awaited comes in milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

pub async fn soon<F: Future>(what: F) -> F::Output {
    timeout(PATIENCE, what).await.expect("nothing came")
}

/// xDS as a test wants it.
pub struct Clusters {
    pub ready: watch::Sender<Option<u64>>,
    pub stream: Mutex<bool>,
}

impl ClustersReady for Clusters {
    fn watch(&self, _: &str) -> watch::Receiver<Option<u64>> {
        self.ready.subscribe()
    }

    fn has_stream(&self, _: &str) -> bool {
        *self.stream.lock().unwrap()
    }
}

/// One replica, and a token for it.
pub struct Control {
    pub keyring: Arc<Keyring>,
    pub clusters: Arc<Clusters>,
    pub token: String,
    pub seal_key: SealKey,
    channel: Channel,
    stop: CancellationToken,
}

impl Control {
    pub async fn start(store: &Store) -> Self {
        let keyring = Arc::new(Keyring::generate().unwrap());
        let mut write = store.begin("test", &keyring).await.unwrap();
        let new = NewNodeToken { name: "node".into(), group: "default".into(), expires_at: None };
        let issued = write.create_node_token(&new).await.unwrap();
        write.commit().await.unwrap();
        // Every policy's clusters are there, unless a test says otherwise.
        let clusters = Arc::new(Clusters { ready: watch::Sender::new(Some(u64::MAX)), stream: true.into() });
        let stop = CancellationToken::new();
        let parts = Parts {
            store: store.clone(),
            publisher: Publisher::spawn(store.clone(), Arc::clone(&keyring)),
            keyring: Arc::clone(&keyring),
            authenticator: Authenticator::new(store.clone(), Arc::clone(&keyring))
                .with_memory(Duration::from_millis(100)),
            clusters: clusters.clone(),
            stop: stop.clone(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder()
            .http2_keepalive_interval(Some(dataplane::KEEPALIVE_INTERVAL))
            .http2_keepalive_timeout(Some(dataplane::KEEPALIVE_TIMEOUT))
            .add_service(dataplane::service(parts))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let seal_key = SealKey::parse(issued.seal_key.expose().as_bytes()).unwrap();
        Self { keyring, clusters, token: issued.token.expose().to_owned(), seal_key, channel, stop }
    }

    fn request<T>(&self, messages: T) -> Request<T> {
        let mut request = Request::new(messages);
        let bearer: MetadataValue<_> = format!("Bearer {}", self.token).parse().unwrap();
        request.metadata_mut().insert("authorization", bearer);
        request
    }

    pub async fn flow(&self, boot: u64, vm: u64) -> Flow {
        let (up, messages) = mpsc::channel(64);
        let hello = wire::FlowHello { node: "node".into(), boot, vm };
        up.send(wire::FlowUp { m: Some(wire::flow_up::M::Hello(hello)) }).await.unwrap();
        let mut client = DataPlaneClient::new(self.channel.clone());
        let down = client.flow(self.request(ReceiverStream::new(messages))).await.unwrap().into_inner();
        Flow { up, down, vm }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub struct Flow {
    up: mpsc::Sender<wire::FlowUp>,
    down: Streaming<wire::FlowDown>,
    vm: u64,
}

impl Flow {
    pub async fn send(&self, records: Vec<wire::Record>) {
        let records = wire::Records { vm: self.vm, records };
        self.up.send(wire::FlowUp { m: Some(wire::flow_up::M::Records(records)) }).await.unwrap();
    }

    /// The seqs of the next ack.
    pub async fn acked(&mut self) -> HashSet<u64> {
        let message = soon(self.down.message()).await.unwrap().unwrap();
        let Some(wire::flow_down::M::Acked(acked)) = message.m else { panic!("no ack") };
        assert_eq!(acked.vm, self.vm);
        acked.ranges.chunks(2).flat_map(|r| r[0]..r[0] + r[1]).collect()
    }

    /// Whether nothing is acknowledged within `time`.
    pub async fn is_silent(&mut self, time: Duration) -> bool {
        timeout(time, self.down.message()).await.is_err()
    }
}

/// What an Envoy's shared data would hold.
#[derive(Clone, Debug, Default)]
pub struct Envoy {
    pub boot: u64,
    pub era: u64,
    /// K of the protocol: everything up to here is known.
    pub revision: u64,
    pub complete: bool,
    pub confirmed_ns: i64,
    pub buckets: u32,
    pub keys: BTreeMap<u32, (u64, u64, Vec<u8>)>,
    pub floor: u64,
    pub profiles: HashSet<u32>,
    pub blocked: Option<(u64, Vec<Owner>)>,
    pub policy: BTreeMap<u32, Vec<u8>>,
    pub policy_revision: u64,
    pub credentials: HashMap<u32, wire::Credential>,
    /// Kinds of all messages so far, with their sizes.
    pub log: Vec<(&'static str, usize)>,
}

pub struct Stream {
    pub up: mpsc::Sender<wire::SyncUp>,
    pub down: Streaming<wire::SyncDown>,
}

impl Stream {
    pub async fn next(&mut self) -> Result<M, Status> {
        match soon(self.down.message()).await? {
            Some(message) => Ok(message.m.expect("an empty message")),
            None => Err(Status::cancelled("the stream ended")),
        }
    }

    pub async fn say(&self, m: wire::sync_up::M) {
        self.up.send(wire::SyncUp { m: Some(m) }).await.unwrap();
    }

    /// The status it ends with.
    pub async fn end(mut self) -> Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }
}

impl Envoy {
    pub fn new(boot: u64) -> Self {
        Self { boot, ..Self::default() }
    }

    pub fn standing(&self) -> wire::Standing {
        wire::Standing {
            era: self.era,
            key_revision: self.revision,
            ready: self.complete,
            policy_revision: self.policy_revision,
            ..Default::default()
        }
    }

    pub fn hello(&self) -> wire::Hello {
        wire::Hello {
            node: "node".into(),
            boot: self.boot,
            epoch: 1,
            envoy_version: "1.40.0".into(),
            filter_version: "0.1.0".into(),
            buckets: self.buckets,
            standing: Some(self.standing()),
            ..Default::default()
        }
    }

    pub async fn connect(&self, control: &Control) -> Stream {
        connect(control, self.hello()).await.unwrap()
    }

    /// Applies messages of `stream` until `done`.
    pub async fn until(&mut self, stream: &mut Stream, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            let message = stream.next().await.unwrap();
            self.apply(message);
        }
    }

    pub fn apply(&mut self, message: M) {
        let size = wire::SyncDown { m: Some(message.clone()) }.encoded_len();
        assert!(size < 64 << 10, "{size} bytes in one message");
        let kind = match message {
            M::Welcome(welcome) => {
                assert!(self.log.last().is_none_or(|_| self.buckets == welcome.buckets), "a boot keeps its count");
                self.buckets = welcome.buckets;
                "welcome"
            }
            M::Blocked(part) => {
                assert_eq!(part.count, 1);
                self.blocked = Some((part.revision, part.owners.iter().filter_map(Owner::from_wire).collect()));
                "blocked"
            }
            M::Profiles(profiles) => {
                self.profiles.extend(profiles.profiles.iter().map(|p| p.id));
                "profiles"
            }
            M::Keys(keys) => {
                assert!(self.blocked.is_some(), "keys before the first list of blocked owners");
                for bucket in keys.buckets {
                    self.put(keys.era, bucket);
                }
                "keys"
            }
            M::Mark(mark) => {
                assert!(self.complete, "a mark before the end of the first resync");
                assert_eq!((mark.era, mark.from), (self.era, self.revision), "marks join on");
                assert!(mark.to >= mark.from && mark.now_unix_ns > self.confirmed_ns);
                (self.revision, self.confirmed_ns) = (mark.to, mark.now_unix_ns);
                "mark"
            }
            M::ResyncEnd(end) => {
                (self.era, self.revision, self.complete, self.floor) = (end.era, end.to, true, end.floor);
                self.confirmed_ns = end.now_unix_ns;
                "end"
            }
            M::Policy(part) => {
                self.policy.insert(part.index, part.part.to_vec());
                if self.policy.len() == part.count as usize {
                    self.policy_revision = part.revision;
                }
                "policy"
            }
            M::Credential(credential) => {
                self.credentials.insert(credential.id, credential);
                "credential"
            }
        };
        self.log.push((kind, size));
    }

    fn put(&mut self, era: u64, bucket: wire::Bucket) {
        assert!(is_sorted(&bucket.records));
        for record in bucket.records.chunks(48) {
            let record = sluicegate_core::state::record::KeyRecord::decode(record.try_into().unwrap());
            assert_eq!(bucket_of(&record.hash, self.buckets), bucket.index);
            assert!(self.profiles.contains(&record.profile), "a key before its profile");
        }
        let stored = self.keys.get(&bucket.index).map(|(era, revision, _)| (*era, *revision));
        if stored.is_none_or(|stored| stored < (era, bucket.revision)) {
            self.keys.insert(bucket.index, (era, bucket.revision, bucket.records.to_vec()));
        }
    }

    /// Whether the Envoy would accept a key.
    pub fn accepts(&self, key: &str) -> bool {
        let hash: [u8; 16] = crate::fixture::hash(key)[..16].try_into().unwrap();
        let bucket = self.keys.get(&bucket_of(&hash, self.buckets));
        bucket.is_some_and(|(era, revision, records)| {
            (*era, *revision) >= (self.era, self.floor) && find(records, &hash).is_some_and(|r| !r.disabled())
        })
    }

    /// How many keys it holds.
    pub fn count(&self) -> usize {
        let live = self.keys.values().filter(|(era, revision, _)| (*era, *revision) >= (self.era, self.floor));
        live.map(|(_, _, records)| records.len() / 48).sum()
    }

    /// How many messages of a kind there were.
    pub fn heard(&self, kind: &str) -> usize {
        self.log.iter().filter(|(k, _)| *k == kind).count()
    }
}

pub async fn connect(control: &Control, hello: wire::Hello) -> Result<Stream, Status> {
    let (up, messages) = mpsc::channel(64);
    up.send(wire::SyncUp { m: Some(wire::sync_up::M::Hello(hello)) }).await.unwrap();
    let mut client = DataPlaneClient::new(control.channel.clone());
    let down = client.sync(control.request(ReceiverStream::new(messages))).await?.into_inner();
    Ok(Stream { up, down })
}
