//! The manifests of `k8s/`, as kustomize renders them: valid in the oldest and the newest Kubernetes, whole, and what the
//! programs in them understand. There is no cluster here; `runs` starts the programs as the manifests say, but for addresses.

mod objects;
mod runs;
mod schemas;

use std::collections::BTreeSet;
use std::process::Command;

use objects::{Objects, render, strings, text};
use serde_json::Value;
use sluicegate_tests::tools;

/// What the base leaves to whoever installs it; `k8s/README.md` says how each is made.
const PROVIDED: [&str; 6] = [
    "sluicegate-admin",
    "sluicegate-control-plane-tls",
    "sluicegate-database",
    "sluicegate-keyring",
    "sluicegate-node",
    "sluicegate-providers",
];

/// Secrets and ConfigMaps that Pods name: kind, name, key (empty: all).
fn references(objects: &Objects) -> BTreeSet<(&'static str, String, String)> {
    let mut found = BTreeSet::new();
    for pod in objects.pods() {
        for container in pod.containers() {
            for from in container["env"].as_array().into_iter().flatten().map(|env| &env["valueFrom"]) {
                for (kind, field) in [("Secret", "secretKeyRef"), ("ConfigMap", "configMapKeyRef")] {
                    if let Some(name) = from[field]["name"].as_str() {
                        found.insert((kind, name.to_owned(), text(&from[field]["key"]).to_owned()));
                    }
                }
            }
            for from in container["envFrom"].as_array().into_iter().flatten() {
                for (kind, field) in [("Secret", "secretRef"), ("ConfigMap", "configMapRef")] {
                    if let Some(name) = from[field]["name"].as_str() {
                        found.insert((kind, name.to_owned(), String::new()));
                    }
                }
            }
        }
        for volume in pod.volumes() {
            let keys = volume.items.unwrap_or_else(|| vec![("", "")]);
            found.extend(keys.iter().map(|(key, _)| (volume.kind, volume.name.to_owned(), (*key).to_owned())));
        }
    }
    found
}

#[test]
fn what_is_named_exists_or_is_to_be_provided() {
    let Some(demo) = render("demo") else { return };
    for (kind, name, key) in references(&demo) {
        let object = demo.get(kind, &name).unwrap_or_else(|| panic!("no {kind} {name}"));
        let has = key.is_empty() || !object["data"][&key].is_null();
        assert!(has, "{kind} {name} has no {key}");
    }
    let Some(base) = render("base") else { return };
    let (mut open, readme) = (BTreeSet::new(), std::fs::read_to_string(objects::folder().join("README.md")).unwrap());
    for (kind, name, key) in references(&base) {
        if base.get(kind, &name).is_none() {
            assert!(readme.contains(&name) && readme.contains(&key), "README.md says nothing of {kind} {name}, {key}");
            open.insert(name);
        }
    }
    assert_eq!(open, PROVIDED.map(str::to_owned).into());
}

#[test]
fn selectors_probes_and_services_meet_their_pods() {
    let Some(demo) = render("demo") else { return };
    let pods = demo.pods();
    assert_eq!(
        pods.iter().map(|p| p.name()).collect::<Vec<_>>(),
        ["sluicegate-control-plane", "sluicegate-gateway", "postgres"]
    );
    let chosen = |labels: &Value| {
        let labels = labels.as_object().unwrap();
        pods.iter().filter(|p| labels.iter().all(|(k, v)| p.labels()[k] == *v)).collect::<Vec<_>>()
    };
    for pod in &pods {
        let owner = chosen(&pod.owner["spec"]["selector"]["matchLabels"]);
        assert!(owner.len() == 1 && owner[0].name() == pod.name(), "{}", pod.name());
        for container in pod.containers() {
            for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
                let port = &container[probe]["httpGet"]["port"];
                assert!(port.is_null() || pod.port(port).is_some(), "{}: {probe}: {port}", pod.name());
            }
        }
    }
    for (kind, selector) in [("Service", "/spec/selector"), ("PodDisruptionBudget", "/spec/selector/matchLabels")] {
        for object in demo.of(kind) {
            let chosen = chosen(object.pointer(selector).unwrap());
            assert_eq!(chosen.len(), 1, "{kind} {}", object["metadata"]["name"]);
            for port in object["spec"]["ports"].as_array().into_iter().flatten() {
                assert!(chosen[0].port(&port["targetPort"]).is_some(), "{kind}: {port}");
            }
        }
    }
}

#[test]
fn pods_are_as_confined_as_kubernetes_can_make_them() {
    let Some(demo) = render("demo") else { return };
    for pod in demo.pods() {
        let spec = &pod.owner["spec"]["template"]["spec"];
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true, "{}", pod.name());
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault", "{}", pod.name());
        assert_eq!(spec["automountServiceAccountToken"], false, "{}", pod.name());
        for container in pod.containers() {
            let context = &container["securityContext"];
            assert_eq!(context["readOnlyRootFilesystem"], true, "{}", pod.name());
            assert_eq!(context["allowPrivilegeEscalation"], false, "{}", pod.name());
            assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]), "{}", pod.name());
            assert!(container["resources"]["limits"]["memory"].is_string(), "{}", pod.name());
        }
    }
}

/// The private key of the control plane, the keyring and the database stay out of the Pods that clients talk to.
#[test]
fn the_gateway_holds_its_own_secrets_only() {
    let Some(base) = render("base") else { return };
    let gateway = Objects(base.0.into_iter().filter(|o| o["metadata"]["name"] == "sluicegate-gateway").collect());
    let held: Vec<_> = references(&gateway).into_iter().filter(|(kind, ..)| *kind == "Secret").collect();
    let held: Vec<_> = held.iter().map(|(_, name, key)| (name.as_str(), key.as_str())).collect();
    assert_eq!(
        held,
        [
            ("sluicegate-control-plane-tls", "ca.crt"),
            ("sluicegate-node", "SLUICEGATE_NODE_TOKEN"),
            ("sluicegate-node", "SLUICEGATE_SEAL_KEY"),
        ]
    );
}

#[test]
fn the_program_knows_its_flags_and_variables() {
    let Some(base) = render("base") else { return };
    let pods = base.pods();
    let ours = pods.iter().flat_map(objects::Pod::containers).filter(|container| container["image"] == "sluicegate");
    let ours: Vec<_> = ours.collect();
    assert_eq!(ours.len(), 2);
    for container in ours {
        let args = strings(&container["args"]);
        let help = Command::new(tools::built("sluicegate")).args([&args[0], "--help"]).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        let words: BTreeSet<&str> = help.split(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c))).collect();
        for arg in &args[1..] {
            let flag = arg.split_once('=').map_or(arg.as_str(), |(flag, _)| flag);
            assert!(words.contains(flag), "{}: {flag}", args[0]);
        }
        for env in container["env"].as_array().into_iter().flatten() {
            assert!(words.contains(text(&env["name"])), "{}: {}", args[0], env["name"]);
        }
    }
}

/// Envoy is waited for as long as its streams are, and then some.
#[test]
fn a_gateway_has_the_time_to_drain() {
    let Some(base) = render("base") else { return };
    let pod = base.pod("sluicegate-gateway");
    let args = strings(&pod.container("drain")["args"]);
    let longest = args.iter().find_map(|arg| arg.strip_prefix("--longest=")).unwrap().parse::<u64>().unwrap();
    let grace = pod.owner["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(grace >= longest + 15, "{grace} s");
    let hook = &pod.container("envoy")["lifecycle"]["preStop"]["httpGet"];
    assert_eq!(hook["path"], "/drained");
    assert!(args.contains(&format!("--listen=0.0.0.0:{}", pod.port(&hook["port"]).unwrap())));
}

/// What is changed in `envoy/managed.yaml` for a Pod, and nothing else is.
#[test]
fn the_bootstrap_is_that_of_every_managed_envoy() {
    let text = std::fs::read_to_string(tools::workspace().join("envoy/managed.yaml")).unwrap();
    let (_, text) = text.split_once("\nadmin:").unwrap();
    let mut expected: Vec<String> = Vec::new();
    let mut in_tls = false;
    for line in text.lines() {
        in_tls = line.starts_with("    # transport_socket:") || (in_tls && line.starts_with("    #   "));
        let line = if in_tls { line.replacen("# ", "", 1) } else { line.to_owned() };
        let line = line.replace("127.0.0.1, port_value: 18000", "sluicegate-control-plane, port_value: 18000");
        expected.push(line.replace("hostname: localhost", "hostname: sluicegate-control-plane"));
    }
    let ours = std::fs::read_to_string(objects::folder().join("base/managed.yaml")).unwrap();
    let (_, ours) = ours.split_once("\nadmin:").unwrap();
    assert_eq!(ours.lines().collect::<Vec<_>>(), expected);
}
