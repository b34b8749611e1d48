//! The configuration of one filter entry, as the control plane renders it into Envoy's.

mod attached;
mod scope;

use serde::{Deserialize, Serialize};

pub use attached::Attached;
pub use scope::Scope;

/// Both entries carry the same, but for the role. Shown in `config_dump`: no secret belongs here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PluginConfig {
    pub role: Role,
    /// Envoy's cluster of the control plane.
    pub cluster: String,
    /// Rises with each newer rendering: a VM with a newer one takes over from older ones at once.
    pub version: u64,
    /// Where listeners, routes and clusters are not ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<Attached>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// In the listener's chain: admits, answers, closes.
    Gate,
    /// In the router's upstream chain: once per attempt.
    Adapter,
}

impl PluginConfig {
    /// # Errors
    /// What is wrong, for Envoy's log: the entry is refused with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let config: Self = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        if config.cluster.is_empty() {
            return Err("cluster: must not be empty".to_owned());
        }
        if let Some(attached) = &config.attached {
            attached.check().map_err(|fault| format!("attached.{fault}"))?;
        }
        Ok(config)
    }

    pub fn to_json(&self) -> String {
        // Strings and a number: serialising cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways() {
        let mut config = PluginConfig { role: Role::Adapter, cluster: "cp".into(), version: 7, attached: None };
        assert_eq!(config.to_json(), r#"{"role":"adapter","cluster":"cp","version":7}"#);
        assert_eq!(PluginConfig::parse(config.to_json().as_bytes()), Ok(config.clone()));
        let scope = Scope { path_prefixes: vec!["/v1".into()], ..Scope::default() };
        config.attached = Some(Attached { clusters: [("openai".into(), "theirs".into())].into(), scope });
        assert!(
            config
                .to_json()
                .ends_with(r#""attached":{"clusters":{"openai":"theirs"},"scope":{"path_prefixes":["/v1"]}}}"#)
        );
        assert_eq!(PluginConfig::parse(config.to_json().as_bytes()), Ok(config));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &str| PluginConfig::parse(text.as_bytes()).unwrap_err();
        assert!(error(r#"{"role":"gate","cluster":"cp","version":1,"colour":"red"}"#).contains("colour"));
        assert!(error(r#"{"role":"door","cluster":"cp","version":1}"#).contains("door"));
        assert!(error(r#"{"role":"gate","cluster":"","version":1}"#).contains("cluster"));
        let attached =
            |text: &str| error(&format!(r#"{{"role":"gate","cluster":"cp","version":1,"attached":{text}}}"#));
        assert!(attached(r#"{"clusters":{}}"#).starts_with("attached.clusters"));
        assert!(attached(r#"{"clusters":{"a":"b c"}}"#).starts_with("attached.clusters.a"));
        assert!(attached(r#"{"clusters":{"a":"b"},"scope":{"hosts":["a:1"]}}"#).starts_with("attached.scope.hosts[0]"));
        assert!(attached(r#"{"clusters":{"a":"b"},"scope":{"host":["a"]}}"#).contains("host"));
    }
}
