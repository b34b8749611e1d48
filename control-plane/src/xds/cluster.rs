//! CDS: one cluster per position, one aggregate per ordered list, and the empty one behind the catch-all routes.

use std::collections::HashMap;
use std::time::Duration;

use envoy_types::pb::envoy::config::cluster::v3::{self as cluster, Cluster};
use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::config::endpoint::v3 as endpoint;
use envoy_types::pb::envoy::extensions::clusters::aggregate::v3::ClusterConfig;
use envoy_types::pb::envoy::extensions::clusters::common::dns::v3::DnsLookupFamily;
use envoy_types::pb::envoy::extensions::clusters::dns::v3::DnsCluster;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use envoy_types::pb::envoy::extensions::upstreams::http::v3 as upstream_http;
use envoy_types::pb::envoy::r#type::matcher::v3 as matcher;
use envoy_types::pb::google::protobuf as pb;
use envoy_types::util::pack_any;
use sluicegate_core::policy::{Position, names};

use super::part;
use super::secret;
use super::topology::{Endpoint, Upstream};

/// A provider that does not answer a SYN in this time is tried at the next position.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Upstream connections rest at most this long: a request written to a connection that the provider is just closing fails.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Envoy's breakers default to 1,024 connections, pending and running requests and 3 retries per cluster and worker set.
/// Streams are long and failovers come in bursts: whether a request may run is the gate's decision, not the breaker's.
const NO_BREAKER: u32 = 1_000_000;

/// The cluster of one position, under `name`. Its host says in its metadata which position it is; the adapter reads that.
pub fn position(name: &str, upstream: &Upstream) -> Cluster {
    let endpoint = &upstream.endpoint;
    Cluster {
        name: name.to_owned(),
        connect_timeout: part::duration(CONNECT_TIMEOUT),
        cluster_discovery_type: Some(discovery(endpoint)),
        load_assignment: Some(assignment(name, endpoint, Some(host_metadata(upstream.position)))),
        circuit_breakers: Some(breakers()),
        common_lb_config: common_lb(),
        transport_socket: transport_socket(endpoint),
        typed_extension_protocol_options: protocol_options(),
        upstream_connection_options: Some(keepalive()),
        ..Default::default()
    }
}

/// The cluster of an ordered list. With `previous_priorities` a retry goes to the next cluster in it.
pub fn list(name: &str, positions: &[String]) -> Cluster {
    let config = ClusterConfig { clusters: positions.to_vec() };
    Cluster {
        name: name.to_owned(),
        connect_timeout: part::duration(CONNECT_TIMEOUT),
        lb_policy: cluster::cluster::LbPolicy::ClusterProvided.into(),
        cluster_discovery_type: Some(cluster::cluster::ClusterDiscoveryType::ClusterType(
            cluster::cluster::CustomClusterType {
                name: "envoy.clusters.aggregate".to_owned(),
                typed_config: part::any(config),
            },
        )),
        circuit_breakers: Some(breakers()),
        common_lb_config: common_lb(),
        ..Default::default()
    }
}

/// Where an issuer's keys are fetched.
pub fn issuer(name: &str, endpoint: &Endpoint) -> Cluster {
    Cluster {
        name: name.to_owned(),
        connect_timeout: part::duration(CONNECT_TIMEOUT),
        cluster_discovery_type: Some(discovery(endpoint)),
        load_assignment: Some(assignment(name, endpoint, None)),
        transport_socket: transport_socket(endpoint),
        ..Default::default()
    }
}

/// No endpoint: what the gate did not admit ends here.
pub fn empty() -> Cluster {
    Cluster {
        name: names::EMPTY_CLUSTER.to_owned(),
        connect_timeout: part::duration(CONNECT_TIMEOUT),
        cluster_discovery_type: Some(fixed()),
        circuit_breakers: Some(breakers()),
        ..Default::default()
    }
}

fn fixed() -> cluster::cluster::ClusterDiscoveryType {
    cluster::cluster::ClusterDiscoveryType::Type(cluster::cluster::DiscoveryType::Static.into())
}

fn discovery(endpoint: &Endpoint) -> cluster::cluster::ClusterDiscoveryType {
    if endpoint.ip().is_some() {
        return fixed();
    }
    let dns = DnsCluster {
        respect_dns_ttl: true,
        // `AUTO` prefers IPv6 even where there is no route for it.
        dns_lookup_family: DnsLookupFamily::V4Preferred.into(),
        ..Default::default()
    };
    cluster::cluster::ClusterDiscoveryType::ClusterType(cluster::cluster::CustomClusterType {
        name: "envoy.cluster.dns".to_owned(),
        typed_config: part::any(dns),
    })
}

fn assignment(name: &str, at: &Endpoint, metadata: Option<core::Metadata>) -> endpoint::ClusterLoadAssignment {
    let Endpoint { host, port, .. } = at;
    let endpoint = endpoint::Endpoint {
        address: part::socket_address(host, *port),
        // SNI and the name that the certificate must carry come from here.
        hostname: host.clone(),
        ..Default::default()
    };
    let endpoint = endpoint::LbEndpoint {
        metadata,
        host_identifier: Some(endpoint::lb_endpoint::HostIdentifier::Endpoint(endpoint)),
        ..Default::default()
    };
    endpoint::ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        endpoints: vec![endpoint::LocalityLbEndpoints { lb_endpoints: vec![endpoint], ..Default::default() }],
        ..Default::default()
    }
}

fn host_metadata(position: Position) -> core::Metadata {
    let text = pb::Value { kind: Some(pb::value::Kind::StringValue(names::position_text(position))) };
    let fields = HashMap::from([(names::META_POSITION.to_owned(), text)]);
    core::Metadata {
        filter_metadata: HashMap::from([(names::META_NAMESPACE.to_owned(), pb::Struct { fields })]),
        ..Default::default()
    }
}

fn breakers() -> cluster::CircuitBreakers {
    let thresholds = cluster::circuit_breakers::Thresholds {
        max_connections: part::u32(NO_BREAKER),
        max_pending_requests: part::u32(NO_BREAKER),
        max_requests: part::u32(NO_BREAKER),
        max_retries: part::u32(NO_BREAKER),
        ..Default::default()
    };
    cluster::CircuitBreakers { thresholds: vec![thresholds], ..Default::default() }
}

/// Host changes count at once; by default the second one within a second waits for the rest of it.
fn common_lb() -> Option<cluster::cluster::CommonLbConfig> {
    Some(cluster::cluster::CommonLbConfig { update_merge_window: part::duration(Duration::ZERO), ..Default::default() })
}

/// Reasoning models are silent for minutes; NATs and firewalls forget a connection that says nothing.
fn keepalive() -> cluster::UpstreamConnectionOptions {
    cluster::UpstreamConnectionOptions {
        tcp_keepalive: Some(core::TcpKeepalive {
            keepalive_time: part::u32(60),
            keepalive_interval: part::u32(20),
            keepalive_probes: part::u32(3),
        }),
        ..Default::default()
    }
}

fn protocol_options() -> HashMap<String, pb::Any> {
    use upstream_http::http_protocol_options::{
        ExplicitHttpConfig, UpstreamProtocolOptions, explicit_http_config::ProtocolConfig,
    };
    let options = upstream_http::HttpProtocolOptions {
        common_http_protocol_options: Some(core::HttpProtocolOptions {
            idle_timeout: part::duration(POOL_IDLE_TIMEOUT),
            ..Default::default()
        }),
        upstream_protocol_options: Some(UpstreamProtocolOptions::ExplicitHttpConfig(ExplicitHttpConfig {
            protocol_config: Some(ProtocolConfig::HttpProtocolOptions(core::Http1ProtocolOptions::default())),
        })),
        ..Default::default()
    };
    HashMap::from([("envoy.extensions.upstreams.http.v3.HttpProtocolOptions".to_owned(), pack_any(options))])
}

fn transport_socket(endpoint: &Endpoint) -> Option<core::TransportSocket> {
    let bundle = tls::SdsSecretConfig { name: secret::name(&endpoint.trust)?, sds_config: part::ads() };
    let named = endpoint.ip().is_none();
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(tls::CommonTlsContext {
            validation_context_type: Some(validation(endpoint, bundle)),
            ..Default::default()
        }),
        // Without the SAN check any certificate of a public authority would be given the provider's credential.
        auto_host_sni: named,
        auto_sni_san_validation: named,
        ..Default::default()
    };
    Some(core::TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(pack_any(context))),
    })
}

/// An IP address is never sent as SNI, so its SAN is matched by hand.
fn validation(endpoint: &Endpoint, bundle: tls::SdsSecretConfig) -> tls::common_tls_context::ValidationContextType {
    use tls::common_tls_context::{CombinedCertificateValidationContext, ValidationContextType};
    let Some(ip) = endpoint.ip() else {
        return ValidationContextType::ValidationContextSdsSecretConfig(bundle);
    };
    let address = tls::SubjectAltNameMatcher {
        san_type: tls::subject_alt_name_matcher::SanType::IpAddress.into(),
        matcher: Some(matcher::StringMatcher {
            match_pattern: Some(matcher::string_matcher::MatchPattern::Exact(ip.to_string())),
            ..Default::default()
        }),
        ..Default::default()
    };
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(tls::CertificateValidationContext {
            match_typed_subject_alt_names: vec![address],
            ..Default::default()
        }),
        validation_context_sds_secret_config: Some(bundle),
        ..Default::default()
    })
}
