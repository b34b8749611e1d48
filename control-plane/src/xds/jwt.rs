//! ECDS: Envoy's own filter that verifies tokens (JWT). It stands before the gate, which reads what it leaves in dynamic
//! metadata. It comes apart from the listener, because a changed listener would cut every stream older than the drain time.

use std::collections::HashMap;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::config::route::v3 as route;
use envoy_types::pb::envoy::extensions::filters::http::jwt_authn::v3 as jwt;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use envoy_types::pb::google::protobuf as pb;
use prost::Message as _;
use sluicegate_core::policy::names;

use super::part;
use super::topology::{Issuer, Keys, Topology};

/// Name of the filter in the listener, and of its configuration.
pub const NAME: &str = "sluicegate-jwt";

/// An issuer that takes a key out of use wants it to be out of use soon.
const KEYS_CACHED: Duration = Duration::from_secs(300);
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const FETCH_AGAIN: Duration = Duration::from_secs(1);
/// Verified tokens that a worker remembers: checking a signature costs more than all else that is done for a request.
const TOKENS_CACHED: u32 = 1_000;
/// Scopes come as one text.
const SPACE_DELIMITED: [&str; 2] = ["scope", "scp"];

/// The place in the listener's chain: what stands there is asked for, and is nothing until it comes.
pub fn filter() -> hcm::HttpFilter {
    let source = core::ExtensionConfigSource {
        config_source: part::ads(),
        default_config: part::any(jwt::JwtAuthentication::default()),
        type_urls: vec!["type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication".to_owned()],
        ..Default::default()
    };
    hcm::HttpFilter {
        name: NAME.to_owned(),
        config_type: Some(hcm::http_filter::ConfigType::ConfigDiscovery(source)),
        ..Default::default()
    }
}

/// The filter's configuration, and its content in one encoding: a protobuf map has none, and a version must be the same from
/// every replica.
pub fn config(topology: &Topology) -> (core::TypedExtensionConfig, Vec<u8>) {
    let issuers = &topology.issuers;
    let providers: HashMap<String, jwt::JwtProvider> =
        issuers.iter().map(|(name, issuer)| (name.clone(), provider(name, issuer))).collect();
    let content = issuers.iter().flat_map(|(name, issuer)| provider(name, issuer).encode_length_delimited_to_vec());
    let content = content.collect();
    let one_of = issuers.keys().map(|name| jwt::jwt_requirement::RequiresType::ProviderName(name.clone()));
    // Who shows no token, or a bad one, goes on: the gate finds a key, or says no in the client's dialect.
    let or_none = jwt::jwt_requirement::RequiresType::AllowMissingOrFailed(pb::Empty {});
    let any = one_of.chain([or_none]).map(|r| jwt::JwtRequirement { requires_type: Some(r) }).collect();
    let any = jwt::jwt_requirement::RequiresType::RequiresAny(jwt::JwtRequirementOrList { requirements: any });
    let rule = jwt::RequirementRule {
        r#match: Some(route::RouteMatch {
            path_specifier: Some(route::route_match::PathSpecifier::Prefix("/".to_owned())),
            ..Default::default()
        }),
        requirement_type: Some(jwt::requirement_rule::RequirementType::Requires(jwt::JwtRequirement {
            requires_type: Some(any),
        })),
    };
    let rules = if providers.is_empty() { Vec::new() } else { vec![rule] };
    let config = jwt::JwtAuthentication { providers, rules, ..Default::default() };
    (part::extension(NAME, config), content)
}

fn provider(name: &str, issuer: &Issuer) -> jwt::JwtProvider {
    let bearer = jwt::JwtHeader { name: "authorization".to_owned(), value_prefix: "Bearer ".to_owned() };
    jwt::JwtProvider {
        issuer: issuer.iss.clone(),
        audiences: issuer.audiences.clone(),
        // A token that never ends could not be taken back.
        require_expiration: true,
        from_headers: vec![bearer],
        payload_in_metadata: names::JWT_PAYLOAD.to_owned(),
        failed_status_in_metadata: names::jwt_failure(issuer.id),
        normalize_payload_in_metadata: Some(jwt::jwt_provider::NormalizePayload {
            space_delimited_claims: SPACE_DELIMITED.map(str::to_owned).to_vec(),
        }),
        jwt_cache_config: Some(jwt::JwtCacheConfig { jwt_cache_size: TOKENS_CACHED, ..Default::default() }),
        jwks_source_specifier: Some(keys(name, &issuer.keys)),
        ..Default::default()
    }
}

fn keys(name: &str, keys: &Keys) -> jwt::jwt_provider::JwksSourceSpecifier {
    match keys {
        Keys::Inline(jwks) => jwt::jwt_provider::JwksSourceSpecifier::LocalJwks(part::inline(jwks.as_str())),
        Keys::Fetched { uri, .. } => jwt::jwt_provider::JwksSourceSpecifier::RemoteJwks(jwt::RemoteJwks {
            http_uri: Some(core::HttpUri {
                uri: uri.clone(),
                timeout: part::duration(FETCH_TIMEOUT),
                http_upstream_type: Some(core::http_uri::HttpUpstreamType::Cluster(name.to_owned())),
            }),
            cache_duration: part::duration(KEYS_CACHED),
            // Fetched ahead, by the main thread; and an issuer that is away holds nothing up.
            async_fetch: Some(jwt::JwksAsyncFetch {
                fast_listener: true,
                failed_refetch_duration: part::duration(FETCH_AGAIN),
            }),
            ..Default::default()
        }),
    }
}
