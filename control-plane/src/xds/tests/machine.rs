use std::sync::Arc;

use super::*;

fn resources(revision: u64, lists: &[&[u32]]) -> Arc<Resources> {
    Arc::new(Resources::new(&listener_config()).with(&topology(revision, lists)))
}

fn ask(kind: Kind, version: &str, nonce: &str) -> Request {
    Request { kind, version: version.into(), nonce: nonce.into(), names: vec![], error: None }
}

fn version(resources: &Resources, kind: Kind) -> String {
    resources.of(kind).unwrap().version.clone()
}

#[test]
fn the_first_request_is_answered_and_its_ack_is_not() {
    let first = resources(1, &[&[1]]);
    let mut machine = Machine::new(Arc::clone(&first));
    let (event, response) = machine.on_request(ask(Kind::Cluster, "", ""));
    let response = response.unwrap();
    assert_eq!(event, None);
    assert_eq!(response.version, version(&first, Kind::Cluster));
    assert_eq!(response.resources.len(), 3);
    let (event, again) = machine.on_request(ask(Kind::Cluster, &response.version, &response.nonce));
    assert_eq!(event, Some(Event::Acked { kind: Kind::Cluster, version: response.version }));
    assert_eq!(again, None);
}

#[test]
fn a_snapshot_is_sent_where_it_differs_and_was_asked_for() {
    let mut machine = Machine::new(resources(1, &[&[1]]));
    assert_eq!(machine.on_snapshot(resources(2, &[&[2]])), []);
    let sent = [Kind::Cluster, Kind::Listener].map(|kind| machine.on_request(ask(kind, "", "")).1.unwrap());
    assert_ne!(sent[0].nonce, sent[1].nonce);
    assert_eq!(machine.on_snapshot(resources(3, &[&[2]])), [], "the same content under a new revision");
    let responses = machine.on_snapshot(resources(4, &[&[3]]));
    assert_eq!(responses.iter().map(|r| r.kind).collect::<Vec<_>>(), [Kind::Cluster]);
}

#[test]
fn a_refused_version_is_not_sent_again_but_the_next_one_is() {
    let mut machine = Machine::new(resources(1, &[&[1]]));
    let bad = machine.on_request(ask(Kind::Cluster, "", "")).1.unwrap();
    let refusal = Request { error: Some("no".into()), ..ask(Kind::Cluster, "", &bad.nonce) };
    let (event, response) = machine.on_request(refusal);
    assert_eq!(event, Some(Event::Refused { kind: Kind::Cluster, version: bad.version.clone(), message: "no".into() }));
    assert_eq!(response, None);
    let good = machine.on_snapshot(resources(2, &[&[2]])).pop().unwrap();
    let (event, _) = machine.on_request(ask(Kind::Cluster, &good.version, &good.nonce));
    assert_eq!(event, Some(Event::Acked { kind: Kind::Cluster, version: good.version }));
}

#[test]
fn an_answer_that_a_newer_response_has_overtaken_means_nothing() {
    let mut machine = Machine::new(resources(1, &[&[1]]));
    let first = machine.on_request(ask(Kind::Cluster, "", "")).1.unwrap();
    let second = machine.on_snapshot(resources(2, &[&[2]])).pop().unwrap();
    assert_eq!(machine.on_request(ask(Kind::Cluster, &first.version, &first.nonce)), (None, None));
    let (event, _) = machine.on_request(ask(Kind::Cluster, &second.version, &second.nonce));
    assert_eq!(event, Some(Event::Acked { kind: Kind::Cluster, version: second.version }));
}

#[test]
fn a_reconnecting_envoy_is_sent_only_what_it_lacks() {
    let current = resources(2, &[&[1]]);
    let has = version(&current, Kind::Cluster);
    let mut machine = Machine::new(Arc::clone(&current));
    let (event, response) = machine.on_request(ask(Kind::Cluster, &has, ""));
    assert_eq!(event, Some(Event::Restated { kind: Kind::Cluster, version: has }));
    assert_eq!(response, None);
    let (event, response) = machine.on_request(ask(Kind::Listener, "of another build", ""));
    assert_eq!(event, Some(Event::Restated { kind: Kind::Listener, version: "of another build".into() }));
    assert!(response.is_some());
}

#[test]
fn secrets_are_sent_by_name_and_again_when_more_are_asked_for() {
    let mut with_ca = topology(1, &[&[1]]);
    let trust = Trust::Ca { owner: "5".into(), pem: "pem".into() };
    let endpoint = Endpoint { host: "p.invalid".into(), port: 443, trust };
    with_ca.add_list(&[Upstream { position: Position { backend: 2, credential: 0 }, endpoint }]);
    let current = Arc::new(Resources::new(&listener_config()).with(&with_ca));
    let mut machine = Machine::new(Arc::clone(&current));
    let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
    let roots = Request { names: names(&["sluicegate-public-roots"]), ..ask(Kind::Secret, "", "") };
    let first = machine.on_request(roots).1.unwrap();
    assert_eq!(first.resources.len(), 1);
    let more = Request {
        names: names(&["sluicegate-public-roots", "sluicegate-ca-5"]),
        ..ask(Kind::Secret, &first.version, &first.nonce)
    };
    let (event, second) = machine.on_request(more.clone());
    assert!(matches!(event, Some(Event::Acked { .. })));
    assert_eq!(second.unwrap().resources.len(), 2);
    let mut reconnected = Machine::new(current);
    let (_, response) = reconnected.on_request(Request { nonce: String::new(), ..more });
    assert_eq!(response.unwrap().resources.len(), 2, "which of the names it has is not said");
}

/// A control plane that has just started does not know the clusters yet. An Envoy that was told of none would drop its own.
#[test]
fn nothing_is_said_of_clusters_before_they_are_known() {
    let mut machine = Machine::new(Arc::new(Resources::new(&listener_config())));
    let ask = |kind, version: &str, names: &[&str]| Request {
        kind,
        version: version.to_owned(),
        nonce: String::new(),
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        error: None,
    };
    assert_eq!(machine.on_request(ask(Kind::Cluster, "v-before", &[])).1, None);
    assert_eq!(machine.on_request(ask(Kind::Extension, "", &["sluicegate-jwt"])).1, None);
    assert!(machine.on_request(ask(Kind::Listener, "", &[])).1.is_some());
    let sent = machine.on_snapshot(resources(7, &[&[1]]));
    assert_eq!(sent.iter().map(|response| response.kind).collect::<Vec<_>>(), [Kind::Cluster, Kind::Extension]);
}
