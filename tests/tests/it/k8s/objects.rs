//! Rendered manifests, and what a Pod is in them.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize as _;
use serde_json::Value;
use sluicegate_tests::tools;

/// The objects of one rendering, in its order.
#[derive(Debug)]
pub struct Objects(pub Vec<Value>);

/// What makes Pods, seen as the Pod it makes.
#[derive(Debug)]
pub struct Pod<'a> {
    pub owner: &'a Value,
}

/// `k8s/`.
pub fn folder() -> PathBuf {
    tools::workspace().join("k8s")
}

/// A folder of `k8s/`, rendered; `None`, and a word about it, where there is no kustomize for this machine.
pub fn render(name: &str) -> Option<Objects> {
    render_at(&folder().join(name))
}

pub fn render_at(folder: &Path) -> Option<Objects> {
    let kubectl = tools::root().join("k8s/kubectl");
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        assert!(kubectl.exists(), "{} is missing: `make k8s-tools` fetches it", kubectl.display());
    } else {
        skipped("the manifests are not rendered, for there is no kubectl for this machine");
        return None;
    }
    let output = Command::new(kubectl).arg("kustomize").arg(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // It warns of what is deprecated.
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(Objects::parse(&String::from_utf8(output.stdout).unwrap()))
}

/// A Secret or ConfigMap as files.
#[derive(Debug)]
pub struct Volume<'a> {
    pub kind: &'static str,
    pub name: &'a str,
    /// The folder.
    pub mount: &'a str,
    /// Key and file name; `None`: all keys under their names.
    pub items: Option<Vec<(&'a str, &'a str)>>,
}

impl Objects {
    pub fn parse(yaml: &str) -> Self {
        Self(serde_norway::Deserializer::from_str(yaml).map(|item| Value::deserialize(item).unwrap()).collect())
    }

    pub fn get(&self, kind: &str, name: &str) -> Option<&Value> {
        self.of(kind).find(|o| o["metadata"]["name"] == name)
    }

    pub fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |o| o["kind"] == kind)
    }

    pub fn pods(&self) -> Vec<Pod<'_>> {
        self.0.iter().filter(|o| !o["spec"]["template"].is_null()).map(|owner| Pod { owner }).collect()
    }

    pub fn pod(&self, name: &str) -> Pod<'_> {
        self.pods().into_iter().find(|p| p.name() == name).unwrap_or_else(|| panic!("no Pod of {name}"))
    }
}

impl<'a> Pod<'a> {
    pub fn name(&self) -> &'a str {
        text(&self.owner["metadata"]["name"])
    }

    pub fn labels(&self) -> &'a Value {
        &self.owner["spec"]["template"]["metadata"]["labels"]
    }

    pub fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let spec = &self.owner["spec"]["template"]["spec"];
        ["initContainers", "containers"].into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten())
    }

    pub fn container(&self, name: &str) -> &'a Value {
        self.containers().find(|c| c["name"] == name).unwrap_or_else(|| panic!("no container {name}"))
    }

    /// The number of a port, by number or name.
    pub fn port(&self, wanted: &Value) -> Option<u64> {
        let mut ports = self.containers().flat_map(|c| c["ports"].as_array().into_iter().flatten());
        ports.find(|p| p["name"] == *wanted || p["containerPort"] == *wanted)?["containerPort"].as_u64()
    }

    /// What is mounted of Secrets and ConfigMaps.
    pub fn volumes(&self) -> Vec<Volume<'a>> {
        let spec = &self.owner["spec"]["template"]["spec"];
        let mounts: Vec<_> =
            self.containers().flat_map(|c| c["volumeMounts"].as_array().into_iter().flatten()).collect();
        let volumes = spec["volumes"].as_array().into_iter().flatten();
        volumes.filter_map(|volume| Volume::of(volume, &mounts)).collect()
    }
}

impl<'a> Volume<'a> {
    /// `None` for one that is filled from nothing.
    fn of(volume: &'a Value, mounts: &[&'a Value]) -> Option<Self> {
        let (kind, source, name) = match (&volume["secret"], &volume["configMap"]) {
            (Value::Null, Value::Null) => return None,
            (Value::Null, map) => ("ConfigMap", map, "name"),
            (secret, _) => ("Secret", secret, "secretName"),
        };
        let mount = mounts.iter().find(|mount| mount["name"] == volume["name"]);
        let mount = mount.unwrap_or_else(|| panic!("{} is mounted nowhere", volume["name"]));
        let items = source["items"].as_array();
        Some(Self {
            kind,
            name: text(&source[name]),
            mount: text(&mount["mountPath"]),
            items: items.map(|items| items.iter().map(|item| (text(&item["key"]), text(&item["path"]))).collect()),
        })
    }
}

/// Says that something was not tested; the test harness would keep what is printed by a test that passes.
pub fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

pub fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(|item| text(item).to_owned()).collect()
}
