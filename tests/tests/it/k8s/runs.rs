//! The programs, started as the Pods of the demo say: their arguments, variables and files are taken from what kustomize
//! renders. Only ports, the Service's address and the place of `/etc` are this test's own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::ensure;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Certificate;
use rustix::process::Signal;
use scripted_provider::{Provider, Script};
use serde_json::{Value, json};
use sluicegate_tests::process::Process;
use sluicegate_tests::{Call, Http, eventually, send, side_by_side, tools};

use super::objects::{Objects, Pod, folder, render, render_at, strings, text};
use super::schemas::copy;

const POD: &str = "sluicegate-gateway-1";
/// The provider's secret.
const SECRET: &str = "sk-of-the-demo-1f0e9d8c7b6a5948";

/// What stands in for the cluster: a root for the Pods' files, and for each port of theirs one of this machine.
struct Cluster {
    root: PathBuf,
    ports: Vec<(u64, u16)>,
    objects: Objects,
}

impl Cluster {
    fn new(objects: Objects) -> Self {
        let ports = [18_000, 18_001, 10_000, 9_901, 9_902].map(|port| (port, tools::free_port())).into();
        Self { root: tools::folder("k8s"), ports, objects }
    }

    fn port(&self, of_pod: u64) -> u16 {
        self.ports.iter().find(|(port, _)| *port == of_pod).unwrap_or_else(|| panic!("nothing listens on {of_pod}")).1
    }

    /// `text` with this machine's ports and places.
    fn here(&self, text: &str) -> String {
        let mut text = text.replace("/etc/", &format!("{}/etc/", self.root.display()));
        text = text.replace("address: sluicegate-control-plane,", "address: 127.0.0.1,");
        for (port, here) in &self.ports {
            for address in ["0.0.0.0", "127.0.0.1"] {
                text = text.replace(&format!("{address}:{port}"), &format!("{address}:{here}"));
            }
            text = text.replace(&format!("port_value: {port}"), &format!("port_value: {here}"));
        }
        text
    }

    /// The value of a key of a Secret or ConfigMap.
    fn value(&self, kind: &str, name: &str, key: &str) -> String {
        let object = self.objects.get(kind, name).unwrap_or_else(|| panic!("no {kind} {name}"));
        let value = text(&object["data"][key]);
        match kind {
            // kustomize breaks long lines, and Kubernetes reads them.
            "Secret" => String::from_utf8(STANDARD.decode(value.replace('\n', "")).unwrap()).unwrap(),
            _ => self.here(value),
        }
    }

    /// Writes the files of a Pod's volumes.
    fn mount(&self, pod: &Pod<'_>) {
        for volume in pod.volumes() {
            let object = self.objects.get(volume.kind, volume.name).unwrap();
            let keys = object["data"].as_object().unwrap().keys();
            let items = volume.items.unwrap_or_else(|| keys.map(|key| (key.as_str(), key.as_str())).collect());
            let place = self.root.join(volume.mount.trim_start_matches('/'));
            std::fs::create_dir_all(&place).unwrap();
            for (key, file) in items {
                std::fs::write(place.join(file), self.value(volume.kind, volume.name, key)).unwrap();
            }
        }
    }

    fn env(&self, container: &Value) -> Vec<(String, String)> {
        let value = |env: &Value| match &env["valueFrom"] {
            Value::Null => text(&env["value"]).to_owned(),
            from if from["fieldRef"]["fieldPath"] == "metadata.name" => POD.to_owned(),
            from => self.value("Secret", text(&from["secretKeyRef"]["name"]), text(&from["secretKeyRef"]["key"])),
        };
        let mut all: Vec<(String, String)> = Vec::new();
        for from in container["envFrom"].as_array().into_iter().flatten() {
            let name = text(&from["secretRef"]["name"]);
            let keys = self.objects.get("Secret", name).unwrap()["data"].as_object().unwrap().keys();
            all.extend(keys.map(|key| (key.clone(), self.value("Secret", name, key))));
        }
        let env = container["env"].as_array().into_iter().flatten();
        all.extend(env.map(|env| (text(&env["name"]).to_owned(), value(env))));
        all
    }

    fn args(&self, container: &Value) -> Vec<String> {
        strings(&container["args"]).iter().map(|arg| self.here(arg).replace("$(POD_NAME)", POD)).collect()
    }

    /// Starts a container's program, with `changed` variables.
    async fn start(&self, pod: &str, container: &str, program: &Path, changed: &[(&str, &str)]) -> Process {
        let pod = self.objects.pod(pod);
        self.mount(&pod);
        let container = pod.container(container);
        let (args, mut env) = (self.args(container), self.env(container));
        env.retain(|(name, _)| changed.iter().all(|(changed, _)| changed != name));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let name = text(&container["name"]);
        let env = env.iter().map(|(n, v)| (n.as_str(), v.as_str())).chain(changed.iter().copied()).collect::<Vec<_>>();
        Process::start(name, &self.root, program, &args, &env).await
    }

    /// What a command of the CLI prints, asked as `k8s/README.md` says.
    fn cli(&self, ca: &Path, args: &[&str]) -> String {
        let admin = self.env(self.objects.pod("sluicegate-control-plane").container("control-plane"));
        let output = Command::new(tools::built("sluicegate"))
            .args(args)
            .envs(admin.into_iter().filter(|(name, _)| name == "SLUICEGATE_ADMIN_TOKEN"))
            .env("SLUICEGATE_URL", format!("https://localhost:{}", self.port(18_001)))
            .env("SLUICEGATE_CA", ca)
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// One model, whose credential is in a Secret; returns a key for it.
    fn give_it_a_policy(&self, ca: &Path, provider: &Provider) -> String {
        let mut openai = json!({"name": "openai", "dialect": "openai", "base_url": provider.base_url()});
        openai["allow_private"] = true.into();
        let file = json!({
            "version": "v1",
            "providers": [openai],
            "credentials": [{"name": "openai-main", "provider": "openai", "source": "env:OPENAI_API_KEY"}],
            "prices": [{"provider": "openai", "model": "gpt-4o", "input": "2.50", "output": "10.00"}],
            "models": [{"name": "gpt-4o", "targets": [{"provider": "openai", "model": "gpt-4o"}]}],
            "orgs": [{"name": "acme"}],
        });
        let path = self.root.join("gateway.yaml");
        std::fs::write(&path, file.to_string()).unwrap();
        self.cli(ca, &["apply", "-f", path.to_str().unwrap()]);
        self.cli(ca, &["keys", "create", "--org", "acme", "laptop"]).trim().to_owned()
    }

    /// Waits until all probes of a Pod succeed.
    async fn probed(&self, process: &Process, pod: &str, client: &reqwest::Client) {
        let pod = self.objects.pod(pod);
        let container = pod.containers().next().unwrap();
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let Some(get) = container[probe].get("httpGet") else { continue };
            let scheme = get["scheme"].as_str().unwrap_or("HTTP").to_ascii_lowercase();
            let port = self.port(pod.port(&get["port"]).unwrap());
            let url = format!("{scheme}://localhost:{port}{}", text(&get["path"]));
            eventually(probe, Duration::from_secs(30), || async {
                ensure!(process.is_running(), "it ended:\n{}", process.log_tail(30));
                let status = client.get(&url).send().await?.status();
                ensure!(status == 200, "{url}: {status}");
                Ok(())
            })
            .await;
        }
    }
}

/// The demo with the secrets that its script makes.
fn demo() -> Option<Cluster> {
    let place = tools::folder("k8s-demo");
    copy(&folder(), &place);
    let filled = Command::new(place.join("demo/secrets.sh")).env("OPENAI_API_KEY", SECRET).output().unwrap();
    assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
    let again = Command::new(place.join("demo/secrets.sh")).output().unwrap();
    assert!(!again.status.success(), "it would have made others");
    render_at(&place.join("demo")).map(Cluster::new)
}

#[test]
fn the_demo_runs() {
    side_by_side(async {
        let Some(cluster) = demo() else { return };
        let rendered = serde_json::to_string(&cluster.objects.0).unwrap();
        assert!(!rendered.contains("PLACEHOLDER") && !rendered.contains(&STANDARD.encode("PLACEHOLDER")));
        let database = test_postgres::database().await;
        let changed = [("DATABASE_URL", database.url.as_str())];
        let program = tools::built("sluicegate");
        let control = cluster.start("sluicegate-control-plane", "control-plane", &program, &changed).await;
        let envoy = cluster.start("sluicegate-gateway", "envoy", &tools::envoy(), &[]).await;
        let drain = cluster.start("sluicegate-gateway", "drain", &program, &[]).await;

        let ca = cluster.root.join("etc/sluicegate/ca.pem");
        let trust = Certificate::from_pem(&std::fs::read(&ca).unwrap()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([trust]).build().unwrap();
        cluster.probed(&control, "sluicegate-control-plane", &client).await;
        let provider = Provider::start(Script::new().require_bearer(SECRET)).await.unwrap();
        let key = cluster.give_it_a_policy(&ca, &provider);
        cluster.probed(&envoy, "sluicegate-gateway", &client).await;
        let address = ([127, 0, 0, 1], cluster.port(10_000)).into();
        let ask = || Call::post("/v1/chat/completions", r#"{"model":"gpt-4o","messages":[]}"#);
        assert_eq!(send(Http::H1, address, ask()).await.unwrap().status, 401);
        eventually("a request is served", Duration::from_secs(20), || async {
            let reply = send(Http::H1, address, ask().bearer(&key)).await?;
            let status = reply.status;
            ensure!(status == 200, "{status}: {}", reply.text().await?);
            Ok(())
        })
        .await;
        assert!(cluster.cli(&ca, &["nodes", "list"]).contains(POD));

        // As a kubelet ends a Pod: Envoy's hook, and SIGTERM for whoever has none.
        drain.signal(Signal::TERM);
        let gateway = cluster.objects.pod("sluicegate-gateway");
        let hook = &gateway.container("envoy")["lifecycle"]["preStop"]["httpGet"];
        let hook =
            format!("http://localhost:{}{}", cluster.port(gateway.port(&hook["port"]).unwrap()), text(&hook["path"]));
        assert_eq!(client.get(hook).send().await.unwrap().status(), 200);
        assert!(drain.ended().await.success());
        assert!(envoy.terminate().await.success());
        assert!(control.terminate().await.success());
    });
}

#[test]
fn the_bootstrap_is_valid() {
    let Some(cluster) = demo() else { return };
    let pod = cluster.objects.pod("sluicegate-gateway");
    cluster.mount(&pod);
    let container = pod.container("envoy");
    let output = Command::new(tools::envoy())
        .args(cluster.args(container))
        .args(["--mode", "validate"])
        .envs(cluster.env(container))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A demo whose secrets nobody made must not run with secrets that everybody knows.
#[test]
fn placeholders_do_not_run() {
    side_by_side(async {
        let Some(cluster) = render("demo").map(Cluster::new) else { return };
        let database = test_postgres::shared().await.empty().await;
        let changed = [("DATABASE_URL", database.url.as_str())];
        let program = tools::built("sluicegate");
        let control = cluster.start("sluicegate-control-plane", "control-plane", &program, &changed).await;
        assert!(!control.ended().await.success());
        assert!(control.log().contains("keyring"), "{}", control.log());
    });
}
