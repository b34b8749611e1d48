//! The small pieces that every resource is made of.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use envoy_types::pb::google::protobuf as pb;
use envoy_types::util::pack_any;

pub fn u32(value: u32) -> Option<pb::UInt32Value> {
    Some(pb::UInt32Value { value })
}

pub fn bool(value: bool) -> Option<pb::BoolValue> {
    Some(pb::BoolValue { value })
}

pub fn duration(d: Duration) -> Option<pb::Duration> {
    let seconds = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
    let nanos = i32::try_from(d.subsec_nanos()).unwrap_or_default();
    Some(pb::Duration { seconds, nanos })
}

pub fn any<T: prost::Name>(value: T) -> Option<pb::Any> {
    Some(pack_any(value))
}

pub fn extension<T: prost::Name>(name: &str, config: T) -> core::TypedExtensionConfig {
    core::TypedExtensionConfig { name: name.to_owned(), typed_config: any(config) }
}

pub fn http_filter<T: prost::Name>(name: &str, config: T) -> hcm::HttpFilter {
    hcm::HttpFilter {
        name: name.to_owned(),
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(pack_any(config))),
        ..Default::default()
    }
}

pub fn socket_address(host: &str, port: u16) -> Option<core::Address> {
    Some(core::Address {
        address: Some(core::address::Address::SocketAddress(core::SocketAddress {
            address: host.to_owned(),
            port_specifier: Some(core::socket_address::PortSpecifier::PortValue(u32::from(port))),
            ..Default::default()
        })),
    })
}

pub fn inline(text: impl Into<String>) -> core::DataSource {
    core::DataSource { specifier: Some(core::data_source::Specifier::InlineString(text.into())), ..Default::default() }
}

/// "Ask the stream this came on."
pub fn ads() -> Option<core::ConfigSource> {
    Some(core::ConfigSource {
        resource_api_version: core::ApiVersion::V3.into(),
        config_source_specifier: Some(core::config_source::ConfigSourceSpecifier::Ads(
            core::AggregatedConfigSource::default(),
        )),
        ..Default::default()
    })
}
