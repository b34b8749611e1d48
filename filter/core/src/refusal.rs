//! Every reason to say no, and what each gets. A dialect (`dialect/<name>/error.rs`) puts it into its own words' shape.

/// A closed list: a client can meet exactly these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No credential of ours in any carrier.
    MissingKey,
    /// The key is not known, or no longer.
    UnknownKey,
    ExpiredKey,
    DisabledKey,
    /// Two different keys of ours in one request.
    TwoKeys,
    /// A token (JWT) that Envoy did not verify, or that says too little.
    InvalidToken {
        reason: String,
    },
    /// Nothing can verify a token now: its issuer's keys cannot be fetched.
    IssuerUnavailable,
    /// The token is good, and its holder is nobody here.
    IdentityNotAllowed {
        reason: String,
    },
    /// The key's org, team or user is blocked.
    OwnerBlocked {
        owner: &'static str,
    },
    /// The client's address is in none of the key's networks.
    NetworkNotAllowed,
    ModelNotAllowed {
        model: String,
    },
    UnknownModel {
        model: String,
    },
    UnknownRoute {
        method: String,
        path: String,
    },
    MethodNotAllowed {
        allowed: &'static str,
    },
    /// An upgrade (WebSocket) on a route that has none.
    UpgradeNotSupported,
    /// Not JSON, or not an object.
    InvalidJson {
        reason: String,
    },
    /// A field that is missing or has the wrong type or value.
    InvalidField {
        field: &'static str,
        reason: String,
    },
    /// A field that stands twice in the body: which one counts is a matter of the reader, so neither does.
    DuplicateField {
        field: String,
    },
    BodyTooLarge {
        /// In bytes; `None` where it was Envoy's.
        limit: Option<u64>,
    },
    UnsupportedEncoding {
        encoding: String,
    },
    /// The body is not what its content encoding says.
    BrokenEncoding {
        encoding: &'static str,
    },
    /// The body stopped coming.
    UploadStalled,
    /// The request itself is not HTTP: Envoy refused it in the middle of its body.
    MalformedRequest,
    /// As much is being decompressed, or kept of it, as one worker can bear.
    GatewayBusy,
    /// No state yet, or too old to say that a key is unknown.
    NotReady,
    /// Known keys were served through an outage for as long as allowed.
    StateTooOld,
    /// Envoy's configuration lacks something the filter cannot work without.
    Misconfigured {
        option: &'static str,
    },
    /// The backend's credential is not here, or cannot be opened.
    CredentialUnavailable,
    /// The provider refused our credential: our fault, not the client's.
    ProviderRefusedCredential {
        status: u32,
    },
    /// No backend could be reached, or none answered before the reply began.
    UpstreamUnavailable,
    UpstreamTimeout,
    /// The gateway broke one of its own rules; `what` says which.
    Internal {
        what: &'static str,
    },
}

impl Refusal {
    /// For a reply that Envoy gave by itself on the way to a provider.
    pub fn from_envoy(status: u32) -> Self {
        match status {
            408 | 504 => Self::UpstreamTimeout,
            413 => Self::BodyTooLarge { limit: None },
            500 => Self::Internal { what: "Envoy could not pass the answer on" },
            _ => Self::UpstreamUnavailable,
        }
    }

    /// For a reply to an admitted request that came without the adapter having seen an attempt; `details` are Envoy's
    /// response code details.
    pub fn unadapted(status: u32, details: &[u8]) -> Self {
        let option = match details {
            b"via_upstream" => "the adapter in the router's upstream_http_filters",
            // The adapter's own word, from another VM.
            b"filter_misconfigured" => "the same vm_id and code in both entries",
            b"route_not_found" | b"direct_response" => "the route for admitted requests",
            b"cluster_not_found" => "a cluster for this model's provider",
            _ => return Self::from_envoy(status),
        };
        Self::Misconfigured { option }
    }

    /// The HTTP status.
    pub fn status(&self) -> u32 {
        match self {
            Self::TwoKeys
            | Self::InvalidJson { .. }
            | Self::InvalidField { .. }
            | Self::DuplicateField { .. }
            | Self::BrokenEncoding { .. }
            | Self::MalformedRequest => 400,
            Self::MissingKey | Self::UnknownKey | Self::ExpiredKey | Self::DisabledKey | Self::InvalidToken { .. } => {
                401
            }
            Self::OwnerBlocked { .. }
            | Self::NetworkNotAllowed
            | Self::ModelNotAllowed { .. }
            | Self::IdentityNotAllowed { .. } => 403,
            Self::UnknownModel { .. } | Self::UnknownRoute { .. } => 404,
            Self::MethodNotAllowed { .. } => 405,
            Self::UploadStalled => 408,
            Self::BodyTooLarge { .. } => 413,
            Self::UnsupportedEncoding { .. } => 415,
            Self::UpgradeNotSupported => 426,
            Self::Internal { .. } => 500,
            Self::ProviderRefusedCredential { .. } => 502,
            Self::NotReady
            | Self::StateTooOld
            | Self::IssuerUnavailable
            | Self::GatewayBusy
            | Self::Misconfigured { .. }
            | Self::CredentialUnavailable
            | Self::UpstreamUnavailable => 503,
            Self::UpstreamTimeout => 504,
        }
    }

    /// A stable name for machines: in the error body, the ledger and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MissingKey => "missing_api_key",
            Self::UnknownKey => "invalid_api_key",
            Self::ExpiredKey => "expired_api_key",
            Self::DisabledKey => "disabled_api_key",
            Self::TwoKeys => "two_api_keys",
            Self::InvalidToken { .. } => "invalid_token",
            Self::IssuerUnavailable => "issuer_unavailable",
            Self::IdentityNotAllowed { .. } => "identity_not_allowed",
            Self::OwnerBlocked { .. } => "owner_blocked",
            Self::NetworkNotAllowed => "network_not_allowed",
            Self::ModelNotAllowed { .. } => "model_not_allowed",
            Self::UnknownModel { .. } => "model_not_found",
            Self::UnknownRoute { .. } => "unknown_route",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::UpgradeNotSupported => "upgrade_not_supported",
            Self::InvalidJson { .. } => "invalid_json",
            Self::InvalidField { .. } => "invalid_field",
            Self::DuplicateField { .. } => "duplicate_field",
            Self::BodyTooLarge { .. } => "request_too_large",
            Self::UnsupportedEncoding { .. } => "unsupported_encoding",
            Self::BrokenEncoding { .. } => "broken_encoding",
            Self::UploadStalled => "upload_stalled",
            Self::MalformedRequest => "malformed_request",
            Self::GatewayBusy => "gateway_busy",
            Self::NotReady => "gateway_not_ready",
            Self::StateTooOld => "gateway_state_too_old",
            Self::Misconfigured { .. } => "filter_misconfigured",
            Self::CredentialUnavailable => "credential_unavailable",
            Self::ProviderRefusedCredential { .. } => "provider_refused_credential",
            Self::UpstreamUnavailable => "upstream_unavailable",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Internal { .. } => "internal_error",
        }
    }

    /// The field of the request that is at fault.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::ModelNotAllowed { .. } | Self::UnknownModel { .. } => Some("model"),
            Self::InvalidField { field, .. } => Some(field),
            Self::DuplicateField { field } => Some(field),
            _ => None,
        }
    }

    /// Seconds for `Retry-After`, where trying again can help.
    pub fn retry_after(&self) -> Option<u32> {
        match self {
            Self::NotReady
            | Self::StateTooOld
            | Self::IssuerUnavailable
            | Self::GatewayBusy
            | Self::CredentialUnavailable
            | Self::UpstreamUnavailable => Some(2),
            _ => None,
        }
    }

    /// One or two sentences for a person: agents show nothing else.
    pub fn message(&self) -> String {
        match self {
            Self::MissingKey => {
                "No Sluicegate key in this request. Send it as `Authorization: Bearer sk-sg-...` (or x-api-key, api-key, x-goog-api-key)."
                    .into()
            }
            Self::UnknownKey => {
                "This Sluicegate key is not known here. It may have been revoked; ask your administrator for a new one.".into()
            }
            Self::ExpiredKey => "This Sluicegate key has expired. Ask your administrator to renew it.".into(),
            Self::DisabledKey => "This Sluicegate key is disabled. Ask your administrator to enable it.".into(),
            Self::TwoKeys => "This request carries two different Sluicegate keys. Send one.".into(),
            Self::InvalidToken { reason } => format!("The token of this request is not accepted: {reason}."),
            Self::IssuerUnavailable => {
                "The keys of the token's issuer cannot be fetched, so it cannot be verified. Try again in a moment.".into()
            }
            Self::IdentityNotAllowed { reason } => format!("The holder of this token may not ask here: {reason}."),
            Self::OwnerBlocked { owner } => format!("The {owner} this key belongs to is blocked. Ask your administrator."),
            Self::NetworkNotAllowed => "This key may not be used from your network address.".into(),
            Self::ModelNotAllowed { model } => format!("This key may not use the model `{model}`."),
            Self::UnknownModel { model } => {
                format!("The model `{model}` does not exist here. GET /v1/models lists those this key may use.")
            }
            Self::UnknownRoute { method, path } => format!("There is no {method} {path} here."),
            Self::MethodNotAllowed { allowed } => format!("This path takes {allowed} only."),
            Self::UpgradeNotSupported => "Connection upgrades are not supported here. Use plain HTTP.".into(),
            Self::InvalidJson { reason } => format!("The request body is not a JSON object: {reason}."),
            Self::InvalidField { field, reason } => format!("`{field}` {reason}."),
            Self::DuplicateField { field } => format!("`{field}` stands twice in the request body."),
            Self::BodyTooLarge { limit: None } => "The request body is too large.".into(),
            Self::BodyTooLarge { limit: Some(limit) } => format!("The request body is larger than {limit} bytes."),
            Self::UnsupportedEncoding { encoding } => {
                format!("The content encoding `{encoding}` is not supported. Send the body as gzip, as zstd, or as it is.")
            }
            Self::BrokenEncoding { encoding } => format!("The request body is not valid {encoding}, or not all of it."),
            Self::UploadStalled => "The request body stopped coming before it was whole.".into(),
            Self::MalformedRequest => "The request is not valid HTTP: its body is not framed as it says.".into(),
            Self::GatewayBusy => "The gateway is busy with large compressed requests. Try again in a moment.".into(),
            Self::NotReady => "The gateway has no current state and cannot check this key. Try again in a moment.".into(),
            Self::StateTooOld => "The gateway has been without its control plane for too long. Try again later.".into(),
            Self::Misconfigured { option } => format!("The gateway is configured without {option}. Tell your administrator."),
            Self::CredentialUnavailable => {
                "The gateway has no usable credential for the provider of this model. Tell your administrator.".into()
            }
            Self::ProviderRefusedCredential { status } => {
                format!("The provider answered {status} to the gateway's credential. Your key is fine; tell your administrator.")
            }
            Self::UpstreamUnavailable => "The provider of this model cannot be reached. Try again in a moment.".into(),
            Self::UpstreamTimeout => "The provider of this model did not answer in time. Try again.".into(),
            Self::Internal { what } => format!("The gateway failed: {what}. Tell your administrator, with the request id."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_without_an_attempt_tells_what_is_missing() {
        let option = |details: &[u8]| match Refusal::unadapted(503, details) {
            Refusal::Misconfigured { option } => Some(option),
            _ => None,
        };
        assert!(option(b"via_upstream").is_some_and(|o| o.contains("upstream_http_filters")));
        assert!(option(b"filter_misconfigured").is_some_and(|o| o.contains("vm_id")));
        assert!(option(b"route_not_found").is_some_and(|o| o.contains("route")));
        assert_eq!(Refusal::unadapted(503, b"no_healthy_upstream"), Refusal::UpstreamUnavailable);
        assert_eq!(Refusal::unadapted(504, b"response_timeout"), Refusal::UpstreamTimeout);
    }
}
