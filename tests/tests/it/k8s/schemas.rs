//! Every object fits the schema of its kind, in which no unknown field has a place; a kind without a schema is refused.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sluicegate_tests::tools;

use super::objects::{Objects, folder, render, render_at, skipped};

/// The oldest Kubernetes that the manifests are for, and the newest whose schemas there are.
const VERSIONS: [&str; 2] = ["1.30", "1.37"];

/// The schemas of kinds that are not Kubernetes' own, where they have been laid beside the project.
fn crds() -> Option<PathBuf> {
    Some(tools::workspace().join("../shared/k8s-schemas")).filter(|folder| folder.exists())
}

/// What is wrong with `objects`.
fn problems(version: &str, crds: Option<&Path>, objects: &Objects) -> Vec<String> {
    let k8s = tools::root().join("k8s");
    assert!(k8s.exists(), "{} is missing: `make k8s-tools` fetches it", k8s.display());
    let script = tools::workspace().join("tests/python/validate_manifests.py");
    let mut command = Command::new("python3");
    command.arg(script).arg(k8s).arg(version).args(crds);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let input = serde_json::to_vec(&objects.0).unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the validator failed");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn none_wrong(crds: Option<&Path>, objects: &Objects) {
    assert!(!objects.0.is_empty());
    for version in VERSIONS {
        assert_eq!(problems(version, crds, objects), [""; 0], "Kubernetes {version}");
    }
}

#[test]
fn base_and_demo_are_valid() {
    for name in ["base", "demo"] {
        let Some(objects) = render(name) else { return };
        none_wrong(None, &objects);
    }
}

/// The overlay of `k8s/README.md`, with certificates from cert-manager.
#[test]
fn an_overlay_with_cert_manager_is_valid() {
    let place = tools::folder("k8s-overlay");
    copy(&folder(), &place);
    let overlay = place.join("mine");
    std::fs::create_dir(&overlay).unwrap();
    let readme = std::fs::read_to_string(folder().join("README.md")).unwrap();
    let (_, written) = readme.split_once("cat > mine/kustomization.yaml <<'EOF'\n").unwrap();
    let (written, _) = written.split_once("\nEOF\n").unwrap();
    std::fs::write(overlay.join("kustomization.yaml"), written).unwrap();
    let Some(objects) = render_at(&overlay) else { return };
    assert_eq!(objects.of("Certificate").count(), 2);
    assert!(objects.0.iter().all(|o| o["metadata"]["namespace"] == "sluicegate"));
    let Some(crds) = crds() else {
        skipped("the objects of cert-manager are not validated, for their schemas are not in ../shared/k8s-schemas");
        return;
    };
    none_wrong(Some(&crds), &objects);
}

/// A file tree, without what it has no need of.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// What a validator that lets things through would be worth.
#[test]
fn unknown_kinds_misspelt_fields_and_wrong_types_are_refused() {
    let good = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "it"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        }
    });
    let with = |pointer: &str, value: Value| {
        let mut object = good.clone();
        let (parent, field) = pointer.rsplit_once('/').unwrap();
        object.pointer_mut(parent).unwrap()[field] = value;
        object
    };
    let bad = [
        with("/kind", json!("Deploymint")),
        with("/kind", json!("DeploymentSpec")),
        with("/apiVersion", json!("apps/v1beta1")),
        with("/apiVersion", json!("apps.example.com/v1")),
        with("/spec/replica", json!(2)),
        with("/spec/template/spec/containers/0/liveness", json!({})),
        with("/spec/replicas", json!("2")),
        with("/spec/template/spec/containers", json!({"name": "c"})),
        with("/spec/template/spec", json!({"restartPolicy": "Always"})),
        with("/spec/template/spec/containers/0/imagePullPolicy", json!(true)),
    ];
    let mut objects = vec![good.clone()];
    for (number, mut object) in bad.into_iter().enumerate() {
        object["metadata"]["name"] = format!("bad-{number}").into();
        objects.push(object);
    }
    let objects = Objects(objects);
    for version in VERSIONS {
        let found = problems(version, None, &objects);
        let of: Vec<&str> = found.iter().filter_map(|p| p.split([' ', ':']).nth(1)).collect();
        let bad: Vec<&str> = objects.0.iter().skip(1).map(|o| o["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(of, bad, "Kubernetes {version}: one problem each: {found:#?}");
    }
    let Some(crds) = crds() else {
        skipped("no schemas of other kinds in ../shared/k8s-schemas");
        return;
    };
    let issuer = json!({"apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": "i"}, "spec": {"selfsigned": {}}});
    assert_eq!(problems("1.30", Some(&crds), &Objects(vec![issuer.clone()])).len(), 1);
    assert_eq!(problems("1.30", None, &Objects(vec![issuer])).len(), 1);
}
