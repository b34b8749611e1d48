//! The routes: what the gate admitted goes to its list, everything else to nowhere.
//!
//! The admitted route matches only with the filter state that admission alone sets, so a request that no gate has seen
//! (it failed, it was skipped, its VM died) cannot reach a provider, and a stream that a dead VM left paused ends.

use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3::{self as route, Route, RouteAction, RouteConfiguration};
use envoy_types::pb::envoy::extensions::retry::priority::previous_priorities::v3::PreviousPrioritiesConfig;
use envoy_types::pb::envoy::r#type::matcher::v3 as matcher;
use envoy_types::pb::google::protobuf as pb;
use envoy_types::util::pack_any;
use sluicegate_core::exchange::credential::CARRIERS;
use sluicegate_core::policy::names;

use super::part;

/// A request body up to this many bytes is kept for further attempts; the default of 1 MiB answers 413 to larger ones.
pub const BUFFER_LIMIT: u32 = 64 << 20;
/// Names of the routes behind which nothing runs start with this.
pub const CATCH_ALL: &str = "catchall";

/// No byte either way: long, because reasoning models think in silence. Shorter limits are the policy's.
pub const STREAM_IDLE: Duration = Duration::from_secs(600);
/// The longest exchange. Drains and concurrency limits lean on there being one.
pub const LONGEST_EXCHANGE: Duration = Duration::from_secs(3600);
/// One attempt, until its response headers.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(300);
/// The gate's own deadline for an admission is 4 s after the last byte; what is left after this was forgotten by a dead VM.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(5);

/// Beside the carriers of a client's credential: what Envoy adds about the client (core's `Head` leaves it to this), and our
/// own header, which by then has done its work.
const NOT_FOR_PROVIDERS: &[&str] =
    &["x-forwarded-for", "x-forwarded-proto", "x-request-id", "x-envoy-internal", names::LIST_HEADER];

/// The headers that the admitted route removes.
pub fn not_for_providers() -> impl Iterator<Item = &'static str> {
    CARRIERS.iter().chain(NOT_FOR_PROVIDERS).copied()
}

/// The whole route table. It never changes: which list a request goes to is in its header.
pub fn table() -> RouteConfiguration {
    RouteConfiguration {
        name: "sluicegate".to_owned(),
        virtual_hosts: vec![route::VirtualHost {
            name: "sluicegate".to_owned(),
            domains: vec!["*".to_owned()],
            routes: vec![admitted(), catch_all_bodyless(), catch_all()],
            // On the virtual host it survives the change of route at admission.
            request_body_buffer_limit: Some(pb::UInt64Value { value: u64::from(BUFFER_LIMIT) }),
            ..Default::default()
        }],
        ..Default::default()
    }
}

fn admitted() -> Route {
    let admitted = matcher::FilterStateMatcher {
        key: names::FILTER_STATE.to_owned(),
        matcher: Some(matcher::filter_state_matcher::Matcher::StringMatch(matcher::StringMatcher {
            match_pattern: Some(matcher::string_matcher::MatchPattern::Prefix(names::ADMITTED.to_owned())),
            ..Default::default()
        })),
    };
    let list = header(names::LIST_HEADER, route::header_matcher::HeaderMatchSpecifier::PresentMatch(true));
    let action = RouteAction {
        cluster_specifier: Some(route::route_action::ClusterSpecifier::ClusterHeader(names::LIST_HEADER.to_owned())),
        retry_policy: Some(retry_policy()),
        // A route without it keeps the timer of the catch-all route that the request came in by.
        idle_timeout: part::duration(STREAM_IDLE),
        ..action(LONGEST_EXCHANGE)
    };
    Route {
        name: "admitted".to_owned(),
        r#match: Some(route::RouteMatch { headers: vec![list], filter_state: vec![admitted], ..any_path() }),
        // The router removes them before the adapter runs, which then sets what the provider is to see.
        request_headers_to_remove: not_for_providers().map(str::to_owned).collect(),
        action: Some(route::route::Action::Route(action)),
        ..Default::default()
    }
}

/// A request without a body is complete with its headers: its idle timer is not re-armed by a change of route, but
/// `max_stream_duration` is.
fn catch_all_bodyless() -> Route {
    let methods = matcher::RegexMatcher { regex: "GET|HEAD|DELETE".to_owned(), ..Default::default() };
    let methods = matcher::StringMatcher {
        match_pattern: Some(matcher::string_matcher::MatchPattern::SafeRegex(methods)),
        ..Default::default()
    };
    let method = header(":method", route::header_matcher::HeaderMatchSpecifier::StringMatch(methods));
    let action = RouteAction {
        cluster_specifier: nowhere(),
        idle_timeout: part::duration(STREAM_IDLE),
        ..action(ADMISSION_TIMEOUT)
    };
    Route {
        name: format!("{CATCH_ALL}-bodyless"),
        r#match: Some(route::RouteMatch { headers: vec![method], ..any_path() }),
        action: Some(route::route::Action::Route(action)),
        ..Default::default()
    }
}

/// A request with a body may take its time to send it, but not stop.
fn catch_all() -> Route {
    let action = RouteAction {
        cluster_specifier: nowhere(),
        idle_timeout: part::duration(ADMISSION_TIMEOUT),
        ..action(LONGEST_EXCHANGE)
    };
    Route {
        name: CATCH_ALL.to_owned(),
        r#match: Some(any_path()),
        action: Some(route::route::Action::Route(action)),
        ..Default::default()
    }
}

fn nowhere() -> Option<route::route_action::ClusterSpecifier> {
    Some(route::route_action::ClusterSpecifier::Cluster(names::EMPTY_CLUSTER.to_owned()))
}

fn any_path() -> route::RouteMatch {
    route::RouteMatch {
        path_specifier: Some(route::route_match::PathSpecifier::Prefix("/".to_owned())),
        ..Default::default()
    }
}

fn header(name: &str, matches: route::header_matcher::HeaderMatchSpecifier) -> route::HeaderMatcher {
    route::HeaderMatcher { name: name.to_owned(), header_match_specifier: Some(matches), ..Default::default() }
}

fn action(longest: Duration) -> RouteAction {
    RouteAction {
        // Envoy's default of 15 s for the whole response would cut every long answer.
        timeout: part::duration(Duration::ZERO),
        max_stream_duration: Some(route::route_action::MaxStreamDuration {
            max_stream_duration: part::duration(longest),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Envoy retries what got no answer. An answer ends the matter whatever its status: any status can be a provider's own.
/// How often is the gate's header `x-envoy-max-retries`; without it, never.
fn retry_policy() -> route::RetryPolicy {
    use route::retry_policy::{RetryBackOff, RetryPriority, retry_priority::ConfigType};
    let next_position = RetryPriority {
        name: "envoy.retry_priorities.previous_priorities".to_owned(),
        config_type: Some(ConfigType::TypedConfig(pack_any(PreviousPrioritiesConfig { update_frequency: 1 }))),
    };
    route::RetryPolicy {
        retry_on: "reset,connect-failure,refused-stream".to_owned(),
        num_retries: part::u32(0),
        per_try_timeout: part::duration(ATTEMPT_TIMEOUT),
        // The next attempt goes to another provider: nothing to wait for.
        retry_back_off: Some(RetryBackOff {
            base_interval: part::duration(Duration::from_millis(1)),
            max_interval: part::duration(Duration::from_millis(2)),
        }),
        retry_priority: Some(next_position),
        ..Default::default()
    }
}
