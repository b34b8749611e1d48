use std::time::{Duration, Instant};

use sluicegate_core::policy::{Position, names};

use super::ready::{WARMING, Warm, Warming};
use super::*;

mod envoy;
mod machine;

fn upstream(backend: u32, host: &str) -> Upstream {
    let endpoint = Endpoint { host: host.to_owned(), port: 443, trust: Trust::PublicRoots };
    Upstream { position: Position { backend, credential: 1 }, endpoint }
}

fn topology(revision: u64, lists: &[&[u32]]) -> Topology {
    let mut topology = Topology { revision, ..Default::default() };
    for list in lists {
        let list: Vec<_> = list.iter().map(|b| upstream(*b, "provider.invalid")).collect();
        topology.add_list(&list);
    }
    topology
}

fn listener_config() -> ListenerConfig {
    ListenerConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        access_log: "/dev/null".to_owned(),
        wasm: WasmCode::File("/filter.wasm".to_owned()),
        trusted_hops: 0,
        tls: None,
    }
}

#[test]
fn versions_say_what_is_in_them() {
    let config = listener_config();
    let bare = Resources::new(&config);
    let one = bare.with(&topology(1, &[&[1, 2]]));
    for again in [bare.with(&topology(1, &[&[1, 2]])), one.with(&topology(2, &[&[1, 2]]))] {
        Kind::ALL.iter().for_each(|kind| assert_eq!(one.of(*kind), again.of(*kind)));
    }
    let other = one.with(&topology(2, &[&[1, 3]]));
    assert_ne!(one.of(Kind::Cluster).unwrap().version, other.of(Kind::Cluster).unwrap().version);
    assert_eq!(one.of(Kind::Listener), other.of(Kind::Listener), "policy never changes the listener");
}

#[test]
fn one_cluster_per_position_and_per_list() {
    let resources = Resources::new(&listener_config()).with(&topology(1, &[&[1, 2], &[2, 1], &[2]]));
    let clusters: Vec<_> = resources.of(Kind::Cluster).unwrap().items.keys().cloned().collect();
    assert_eq!(clusters.len(), 2 + 3 + 1, "{clusters:?}");
    assert_eq!(resources.of(Kind::Secret).unwrap().items.keys().collect::<Vec<_>>(), ["sluicegate-public-roots"]);
}

#[test]
fn clusters_stay_while_someone_may_use_them() {
    let start = Instant::now();
    let hour = route::LONGEST_EXCHANGE;
    let (old, new) = (topology(1, &[&[1]]), topology(2, &[&[2]]));
    let old_list = old.lists.keys().next().unwrap().clone();
    let mut retained = Retained::default();
    retained.replace(old);
    retained.replace(new);
    let keeps = |r: &Retained| r.topology().lists.contains_key(&old_list);
    assert_eq!(retained.topology().revision, 2);
    assert!(!retained.sweep(Some(1), start + hour * 2), "an Envoy still enforces revision 1");
    assert!(!retained.sweep(Some(2), start + hour * 3), "its exchanges still run");
    assert!(!retained.sweep(Some(1), start + hour * 4), "another Envoy with revision 1 came");
    assert!(!retained.sweep(None, start + hour * 5));
    assert!(keeps(&retained));
    assert!(retained.sweep(Some(3), start + hour * 6));
    assert!(!keeps(&retained));
    assert_eq!(retained.topology(), topology(2, &[&[2]]));
}

#[test]
fn a_list_that_comes_back_is_current_again() {
    let mut retained = Retained::default();
    for revision in 1..=3 {
        retained.replace(topology(revision, if revision == 2 { &[&[2]] } else { &[&[1]] }));
    }
    retained.sweep(None, Instant::now());
    retained.sweep(None, Instant::now() + route::LONGEST_EXCHANGE);
    assert_eq!(retained.topology(), topology(3, &[&[1]]));
}

#[test]
fn clusters_warm_after_their_ack_only() {
    let now = Instant::now();
    let mut warming = Warming::default();
    assert_eq!(warming.of("a", now), Warm::NotInUse);
    warming.acked("a".into(), now);
    warming.acked("a".into(), now + Duration::from_secs(1));
    assert_eq!(warming.of("a", now), Warm::At(now + WARMING), "a second ACK of the same starts nothing anew");
    assert_eq!(warming.of("a", now + WARMING), Warm::Yes);
    assert_eq!(warming.of("b", now + WARMING), Warm::NotInUse);
    warming.acked("b".into(), now);
    warming.asked_for_listeners(now);
    assert_eq!(warming.of("b", now), Warm::Yes, "a starting Envoy asks for listeners when its clusters are warm");
    warming.restated("c".into(), now);
    assert_eq!(warming.of("c", now), Warm::Yes);
    warming.restated("b".into(), now);
    assert_eq!(warming.of("b", now), Warm::Yes);
}

#[test]
fn a_node_is_as_far_as_its_last_stream() {
    let ready = ClustersReady::default();
    let node = ready.watch("n");
    assert_eq!(*node.borrow(), None);
    let one = ready.enter("n");
    one.set(Some(3));
    assert_eq!(*node.borrow(), Some(3));
    let two = ready.enter("n");
    assert_eq!(*node.borrow(), None);
    two.set(Some(2));
    assert_eq!(*node.borrow(), Some(2));
    drop(two);
    assert_eq!(*node.borrow(), Some(3));
    drop(one);
    assert_eq!(*node.borrow(), None);
    assert_eq!(*ready.watch("other").borrow(), None);
}

#[test]
fn names_of_both_planes_agree() {
    let topology = topology(1, &[&[7, 9]]);
    let positions = [7, 9].map(|backend| Position { backend, credential: 1 });
    let (name, order) = topology.lists.first_key_value().unwrap();
    assert_eq!(*name, names::list_cluster(&positions));
    assert_eq!(*order, positions.map(names::position_cluster));
}
