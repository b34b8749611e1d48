//! Renders what somebody puts into an Envoy configuration of their own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use sluicegate_core::plugin::{Attached, Role, Scope};
use sluicegate_core::policy::names;

use super::output::{note, print};
use crate::{serve, xds};

#[derive(Debug, clap::Args)]
pub(super) struct AttachArgs {
    /// What owns the Envoy's configuration
    #[arg(long, value_enum)]
    to: Target,
    /// How much the filter does there
    #[arg(long, value_enum, default_value_t)]
    mode: Mode,
    /// Which of that Envoy's clusters reaches a provider; repeat for each provider
    #[arg(long = "cluster", value_name = "PROVIDER=CLUSTER", value_parser = pair, required = true)]
    clusters: Vec<(String, String)>,
    /// Host whose requests are Sluicegate's; repeatable [default: every host]
    #[arg(long = "scope-host", value_name = "HOST")]
    hosts: Vec<String>,
    /// Path under which requests are Sluicegate's; repeatable [default: every path]
    #[arg(long = "scope-path-prefix", value_name = "PATH")]
    path_prefixes: Vec<String>,
    /// The control plane's gRPC port, as that Envoy reaches it; with https:// or --ca over TLS
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:18000")]
    control_plane: String,
    /// PEM file, on that Envoy's machine, of the authority that signed the control plane's certificate
    #[arg(long, value_name = "FILE")]
    ca: Option<String>,
    /// Where the filter lies on that Envoy's machine
    #[arg(long, value_name = "FILE", default_value = "/etc/sluicegate/filter.wasm")]
    wasm: String,
    /// Write the filter to this file
    #[arg(long, value_name = "FILE")]
    write_wasm: Option<PathBuf>,
    /// Write to this file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Target {
    /// A configuration file
    Static,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Mode {
    /// Everything: requests are read whole, admitted, edited and metered
    #[default]
    Full,
}

/// Where Envoys reach the control plane.
#[derive(Debug, PartialEq, Eq)]
struct ControlPlane {
    host: String,
    port: u16,
    /// PEM file of the authority; `None`: plaintext.
    ca: Option<String>,
}

/// Where most distributions keep the public roots.
const PUBLIC_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
const TEMPLATE: &str = include_str!("attach/static.yaml");

pub(super) fn execute(args: &AttachArgs) -> anyhow::Result<()> {
    let (Target::Static, Mode::Full) = (args.to, args.mode);
    let attached = attached(args)?;
    let control_plane = ControlPlane::parse(&args.control_plane, args.ca.as_deref())?;
    if control_plane.ca.is_none() && !is_loopback(&control_plane.host) {
        note(&format!("the node token will cross the network to {} in plain text; give --ca", control_plane.host));
    }
    let rendered = render(&attached, &control_plane, &args.wasm);
    if let Some(path) = &args.write_wasm {
        write(path, &serve::filter::load(None)?)?;
    }
    match &args.output {
        Some(path) => write(path, rendered.as_bytes())?,
        None => print(&rendered)?,
    }
    Ok(())
}

fn attached(args: &AttachArgs) -> anyhow::Result<Attached> {
    let mut clusters = BTreeMap::new();
    for (provider, cluster) in &args.clusters {
        let before = clusters.insert(provider.clone(), cluster.clone());
        ensure!(before.is_none(), "--cluster: provider {provider} has two");
    }
    let scope = Scope { hosts: args.hosts.clone(), path_prefixes: args.path_prefixes.clone() };
    let attached = Attached { clusters, scope };
    attached.check().map_err(anyhow::Error::msg)?;
    Ok(attached)
}

impl ControlPlane {
    fn parse(text: &str, ca: Option<&str>) -> anyhow::Result<Self> {
        let (address, tls) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(address), _) => (address, true),
            (None, Some(_)) if ca.is_some() => bail!("--control-plane: is http, but --ca is given"),
            (None, Some(address)) => (address, false),
            (None, None) => (text, ca.is_some()),
        };
        let (host, port) = address.rsplit_once(':').context("--control-plane: is no HOST:PORT")?;
        let port = port.parse().with_context(|| format!("--control-plane: {port:?} is no port"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        ensure!(!host.is_empty() && !host.contains('/'), "--control-plane: {host:?} is no host");
        if tls && host.parse::<std::net::IpAddr>().is_ok() {
            bail!("--control-plane: over TLS it must be the name in the certificate, not an address");
        }
        let ca = tls.then(|| ca.unwrap_or(PUBLIC_ROOTS).to_owned());
        Ok(Self { host, port, ca })
    }

    /// The cluster's `transport_socket`, or nothing.
    fn tls(&self) -> String {
        let Some(ca) = &self.ca else { return String::new() };
        format!(
            r#"    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        auto_host_sni: true
        auto_sni_san_validation: true
        common_tls_context:
          validation_context: {{trusted_ca: {{filename: {}}}}}
"#,
            quoted(ca)
        )
    }
}

fn render(attached: &Attached, control_plane: &ControlPlane, wasm: &str) -> String {
    let config = |role| quoted(&xds::plugin_config(role, Some(attached.clone())).to_json());
    let values: [(&str, String); 16] = [
        ("LIST_HEADER", names::LIST_HEADER.to_owned()),
        ("FILTER_STATE", names::FILTER_STATE.to_owned()),
        ("ADMITTED", names::ADMITTED.to_owned()),
        ("NOT_FOR_PROVIDERS", xds::not_for_providers().collect::<Vec<_>>().join(", ")),
        ("GATE", names::GATE.to_owned()),
        ("ADAPTER", names::ADAPTER.to_owned()),
        ("VM_ID", names::VM_ID.to_owned()),
        ("SEAL_KEY_ENV", names::SEAL_KEY_ENV.to_owned()),
        ("NODE_TOKEN_ENV", names::NODE_TOKEN_ENV.to_owned()),
        ("CONTROL_PLANE_CLUSTER", names::CONTROL_PLANE_CLUSTER.to_owned()),
        ("HOST", quoted(&control_plane.host)),
        ("PORT", control_plane.port.to_string()),
        ("TLS", control_plane.tls()),
        ("GATE_CONFIG", config(Role::Gate)),
        ("ADAPTER_CONFIG", config(Role::Adapter)),
        ("WASM", quoted(wasm)),
    ];
    // In one pass: what stands in a value is not looked at again.
    let mut out = String::with_capacity(TEMPLATE.len() * 2);
    let mut parts = TEMPLATE.split("{{");
    out.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, rest) = part.split_once("}}").unwrap_or_default();
        match values.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => out.push_str(value),
            None => out.extend(["{{", name, "}}"]),
        }
        out.push_str(rest);
    }
    out
}

/// A string of YAML. JSON's are.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((provider, cluster)) if !provider.is_empty() && !cluster.is_empty() => {
            Ok((provider.to_owned(), cluster.to_owned()))
        }
        _ => Err("is no PROVIDER=CLUSTER".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_norway::Value;
    use sluicegate_core::plugin::PluginConfig;

    use super::*;

    fn rendered(control_plane: &str, ca: Option<&str>) -> (String, Value) {
        let clusters = [("openai".to_owned(), "outbound|443||api.openai.com".to_owned())].into();
        let scope = Scope { hosts: vec!["llm.example.com".into()], path_prefixes: vec!["/v1".into()] };
        let control_plane = ControlPlane::parse(control_plane, ca).unwrap();
        let text = render(&Attached { clusters, scope }, &control_plane, "/opt/it's \"{{VM_ID}}\".wasm");
        let mut value: Value = serde_norway::from_str(&text).unwrap();
        value.apply_merge().unwrap();
        (text, value)
    }

    #[test]
    fn every_placeholder_is_filled_and_every_value_stays_itself() {
        let (text, value) = rendered("127.0.0.1:18000", None);
        assert_eq!(text.matches("{{").count(), 1, "{text}");
        let listener = &value["static_resources"]["listeners"][0];
        let manager = &listener["filter_chains"][0]["filters"][0]["typed_config"];
        let gate = &manager["http_filters"][0]["typed_config"]["config"];
        assert_eq!(gate["vm_config"]["code"]["local"]["filename"], "/opt/it's \"{{VM_ID}}\".wasm");
        let adapter = &manager["http_filters"][1]["typed_config"]["upstream_http_filters"][0]["typed_config"]["config"];
        assert_eq!(gate["vm_config"], adapter["vm_config"]);
        for (entry, role) in [(gate, Role::Gate), (adapter, Role::Adapter)] {
            let config = PluginConfig::parse(entry["configuration"]["value"].as_str().unwrap().as_bytes()).unwrap();
            assert_eq!(config.role, role);
            let attached = config.attached.unwrap();
            assert_eq!(attached.clusters["openai"], "outbound|443||api.openai.com");
            assert!(attached.scope.covers(b"llm.example.com:443", b"/v1/models"));
        }
        assert!(value["static_resources"]["clusters"][0].get("transport_socket").is_none());
    }

    #[test]
    fn tls_is_asked_for_by_scheme_or_authority() {
        let ca = |(_, value): (String, Value)| {
            let socket = value["static_resources"]["clusters"][0]["transport_socket"]["typed_config"].clone();
            socket["common_tls_context"]["validation_context"]["trusted_ca"]["filename"].as_str().map(str::to_owned)
        };
        assert_eq!(ca(rendered("cp.example.com:18000", Some("/ca.pem"))).as_deref(), Some("/ca.pem"));
        assert_eq!(ca(rendered("https://cp.example.com:18000", None)).as_deref(), Some(PUBLIC_ROOTS));
        assert_eq!(ca(rendered("http://cp.example.com:18000", None)), None);
    }

    #[test]
    fn what_is_no_address_is_said() {
        let error = |text: &str, ca: Option<&str>| ControlPlane::parse(text, ca).unwrap_err().to_string();
        assert!(error("cp", None).contains("HOST:PORT"));
        assert!(error("cp:x", None).contains("no port"));
        assert!(error(":1", None).contains("no host"));
        assert!(error("http://cp:1", Some("/ca.pem")).contains("--ca"));
        assert!(error("https://10.0.0.1:1", None).contains("certificate"));
        let v6 = ControlPlane::parse("[::1]:18000", None).unwrap();
        assert_eq!((v6.host.as_str(), v6.port), ("::1", 18000));
    }
}
