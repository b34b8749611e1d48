//! The bootstrap of a managed Envoy: `envoy/managed.yaml` with its addresses filled in.

use std::net::SocketAddr;
use std::path::PathBuf;

const MANAGED: &str = include_str!("../../../envoy/managed.yaml");
const ADMIN: &str = "address: 127.0.0.1, port_value: 9901";
const CONTROL_PLANE: &str = "address: 127.0.0.1, port_value: 18000";
const TLS_BLOCK: &str = "    # transport_socket:";
const CA_FILE: &str = "/etc/sluicegate/ca.pem";

/// What differs between Envoys.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    pub admin: SocketAddr,
    /// Where its gRPC port listens.
    pub control_plane: SocketAddr,
    /// Whom to trust there; `None` for plaintext.
    pub ca: Option<PathBuf>,
}

impl Bootstrap {
    /// As YAML.
    pub fn render(&self) -> String {
        let address = |a: SocketAddr| format!("address: \"{}\", port_value: {}", a.ip(), a.port());
        let yaml = MANAGED.replacen(ADMIN, &address(self.admin), 1);
        let yaml = yaml.replacen(CONTROL_PLANE, &address(self.control_plane), 1);
        match &self.ca {
            Some(ca) => with_tls(&yaml).replacen(CA_FILE, &ca.display().to_string(), 1),
            None => yaml,
        }
    }
}

/// Uncomments the block of the TLS settings.
fn with_tls(yaml: &str) -> String {
    let mut inside = false;
    let mut out = String::with_capacity(yaml.len());
    for line in yaml.lines() {
        inside = line.starts_with(TLS_BLOCK) || (inside && line.starts_with("    # "));
        match line.strip_prefix("    # ") {
            Some(bare) if inside => out.extend(["    ", bare]),
            _ => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_norway::Value;

    use super::*;

    fn rendered(ca: Option<&str>) -> Value {
        let bootstrap = Bootstrap {
            admin: "127.0.0.1:1".parse().unwrap(),
            control_plane: "[::1]:2".parse().unwrap(),
            ca: ca.map(PathBuf::from),
        };
        serde_norway::from_str(&bootstrap.render()).unwrap()
    }

    #[test]
    fn addresses_are_filled_in() {
        let yaml = rendered(None);
        assert_eq!(yaml["admin"]["address"]["socket_address"]["port_value"], 1);
        let cluster = &yaml["static_resources"]["clusters"][0];
        let endpoint = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
        assert_eq!(endpoint["address"]["socket_address"]["address"], "::1");
        assert_eq!(endpoint["address"]["socket_address"]["port_value"], 2);
        assert!(cluster.get("transport_socket").is_none());
    }

    #[test]
    fn tls_comes_with_an_authority() {
        let yaml = rendered(Some("/x/ca.pem"));
        let tls = &yaml["static_resources"]["clusters"][0]["transport_socket"]["typed_config"];
        assert_eq!(tls["common_tls_context"]["validation_context"]["trusted_ca"]["filename"], "/x/ca.pem");
        assert_eq!(tls["auto_sni_san_validation"], true);
    }

    /// The labels that the filter's metrics have.
    #[test]
    fn labels_of_metrics() {
        let yaml = rendered(None);
        let tags = yaml["stats_config"]["stats_tags"].as_sequence().unwrap();
        let names: Vec<_> = tags.iter().map(|t| t["tag_name"].as_str().unwrap()).collect();
        assert_eq!(names, ["route", "model", "backend", "status", "type", "code"]);
        for tag in tags {
            let (name, regex) = (tag["tag_name"].as_str().unwrap(), tag["regex"].as_str().unwrap());
            assert_eq!(regex, format!(r"^wasmcustom\.sluicegate_.*?(\.{name}\[([^\]]*)\])"));
        }
    }
}
