use serde_json::Value;

use super::client::{Client, items};
use super::output::{Output, dollars, json as as_json, millis, print, text};
use super::usage::{INPUT, OUTPUT};

#[derive(Debug, clap::Args)]
pub(super) struct ExplainArgs {
    /// What x-sluicegate-request-id said
    request_id: String,
}

pub(super) async fn explain(args: &ExplainArgs, client: &Client, output: Output) -> anyhow::Result<()> {
    let answer = client.get(&["v1", "usage", &args.request_id], &[]).await?;
    let attempts = items(&answer, "attempts")?;
    print(&match output {
        Output::Json => as_json(&answer),
        Output::Table => attempts.iter().map(attempt_text).collect(),
    })
}

/// One attempt in words, a fact a line; what there is nothing to say of has no line.
fn attempt_text(attempt: &Value) -> String {
    let get = |field: &str| text(attempt, field);
    let last = if attempt.get("last") == Some(&Value::Bool(true)) { ", the last" } else { "" };
    let time = format!(
        "{} in all, first token after {}, gateway's own {}",
        millis(attempt, "total_us"),
        millis(attempt, "first_token_us"),
        millis(attempt, "gateway_us")
    );
    let facts = [
        ("request", Some(format!("{}, attempt {}{last}", get("operation"), get("attempt")))),
        ("at", Some(format!("{} on {}", get("admitted_at"), get("node")))),
        ("by", owner(attempt)),
        ("asked", asked(attempt)),
        ("went to", destination(attempt)),
        ("outcome", Some(outcome(attempt))),
        ("refused", present(attempt, "refusal").map(|code| format!("{code}: {}", meaning(code)))),
        ("usage", tokens(attempt).map(|tokens| format!("{tokens} ({})", get("source")))),
        ("cost", charged(attempt).then(|| dollars(attempt, "cost_nano"))),
        ("time", Some(time)),
    ];
    let line = |(name, fact): (&str, Option<String>)| Some(format!("{name:<8} {}\n", fact?));
    let lines: String = facts.into_iter().filter_map(line).collect();
    format!("{lines}\n")
}

/// A field's text, where it has one.
fn present<'a>(attempt: &'a Value, field: &str) -> Option<&'a str> {
    attempt.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn owner(attempt: &Value) -> Option<String> {
    let named = |field: &str| Some(format!("{field} {}", present(attempt, field)?));
    let mut parts: Vec<String> = ["org", "team", "user", "key"].into_iter().filter_map(named).collect();
    parts.extend(present(attempt, "key_id").map(|id| format!("key id {id}")));
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn asked(attempt: &Value) -> Option<String> {
    let streamed = if attempt.get("stream") == Some(&Value::Bool(true)) { ", streamed" } else { "" };
    match (present(attempt, "route"), present(attempt, "requested_model")) {
        (None, None) => None,
        (route, None) => Some(format!("{}{streamed}", route?)),
        (route, Some(model)) => Some(format!("{} for {model}{streamed}", route.unwrap_or("-"))),
    }
}

fn destination(attempt: &Value) -> Option<String> {
    let backend = present(attempt, "backend")?;
    let (credential, model) = (text(attempt, "credential"), text(attempt, "model"));
    Some(format!("{backend} with credential {credential} (model {model}, policy {})", text(attempt, "policy_revision")))
}

/// Whether a provider may have done anything for this attempt.
fn reached_provider(attempt: &Value) -> bool {
    let answered = attempt.get("upstream_status").and_then(Value::as_i64).is_some_and(|status| status != 0);
    answered || present(attempt, "source").is_some_and(|source| source != "none")
}

/// Whether its cost says something; of what never reached a provider it is nothing.
fn charged(attempt: &Value) -> bool {
    reached_provider(attempt) || attempt.get("cost_nano").and_then(Value::as_i64).is_some_and(|nano| nano != 0)
}

fn outcome(attempt: &Value) -> String {
    let is_last = attempt.get("last").and_then(Value::as_bool).unwrap_or(true);
    let client = match attempt.get("status").and_then(Value::as_i64) {
        None | Some(0) if !is_last => "another attempt followed".to_owned(),
        None | Some(0) => "client left before an answer".to_owned(),
        Some(status) => format!("client got {status}"),
    };
    let provider = match attempt.get("upstream_status").and_then(Value::as_i64) {
        Some(status) if status != 0 => format!("provider said {status}"),
        _ if reached_provider(attempt) => "provider's status is unknown".to_owned(),
        _ => "never reached the provider".to_owned(),
    };
    format!("{}: {client}, {provider}", text(attempt, "ended"))
}

fn tokens(attempt: &Value) -> Option<String> {
    let count = |kind: &&str| Some(format!("{kind} {}", attempt.get(*kind)?.as_i64().filter(|n| *n > 0)?));
    let tokens: Vec<String> = INPUT.iter().chain(OUTPUT).chain(&["images"]).filter_map(count).collect();
    (!tokens.is_empty()).then(|| tokens.join(", "))
}

/// What a refusal's code means for who runs the gateway; the client was told the same in its own terms.
fn meaning(code: &str) -> &'static str {
    match code {
        "missing_api_key" => "the request carried no Sluicegate key",
        "invalid_api_key" => "the key was not known (never made, revoked, or mistyped)",
        "expired_api_key" => "the key's expires_at has passed",
        "disabled_api_key" => "the key is disabled",
        "two_api_keys" => "the request carried two different keys",
        "owner_blocked" => "the key's org, team or user is blocked",
        "network_not_allowed" => "the client's address is in none of the key's networks",
        "model_not_allowed" => "the model is not among the key's models",
        "model_not_found" => "no model of this name exists",
        "unknown_route" => "the gateway has no such path",
        "method_not_allowed" => "the path does not take this method",
        "upgrade_not_supported" => "the request asked for a connection upgrade such as WebSocket",
        "invalid_json" => "the body was not a JSON object",
        "invalid_field" => "a field of the body was missing or had a wrong type or value",
        "duplicate_field" => "a field stood twice in the body",
        "request_too_large" => "the body was larger than the gateway takes",
        "unsupported_encoding" => "the body was sent in a content encoding the gateway does not read",
        "gateway_not_ready" => "the Envoy had no current state yet to check the key by",
        "gateway_state_too_old" => "the Envoy had been without its control plane for too long",
        "filter_misconfigured" => "the Envoy's filter entry lacks an option it needs",
        "credential_unavailable" => {
            "the Envoy had no usable credential for the provider; `sluicegate doctor` says which"
        }
        "provider_refused_credential" => "the provider refused the gateway's credential, not the client's key",
        "upstream_unavailable" => "the provider could not be reached",
        "upstream_timeout" => "the provider did not answer in time",
        "internal_error" => "the gateway failed; the Envoy's log says more",
        _ => "this version does not know the code; a newer filter may have written it",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_is_explained_and_empty_lines_are_left_out() {
        let told = attempt_text(&json!({
            "operation": "x", "attempt": 1, "last": true, "route": "chat.completions", "requested_model": "",
            "status": 401, "refusal": "invalid_api_key", "ended": "refused", "source": "none", "input": 0,
            "upstream_status": null, "cost_nano": 0,
        }));
        assert!(told.contains("refused  invalid_api_key: the key was not known"), "{told}");
        assert!(told.contains("client got 401, never reached the provider"), "{told}");
        assert!(told.contains("asked    chat.completions\n"), "{told}");
        for heading in ["by ", "went to", "usage", "cost"] {
            assert!(!told.lines().any(|line| line.starts_with(heading)), "{told}");
        }
    }

    #[test]
    fn what_a_provider_did_is_told_in_full() {
        let told = attempt_text(&json!({
            "org": "acme", "key": "ci", "backend": "openai/gpt", "credential": "main", "model": "gpt",
            "status": 200, "upstream_status": 200, "source": "reported", "input": 3, "cost_nano": 1_000_000_000,
        }));
        for part in ["org acme, key ci", "openai/gpt with credential main", "provider said 200", "input 3", "$1"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    #[test]
    fn every_refusal_has_a_meaning() {
        use sluicegate_core::refusal::Refusal;
        let all = [
            Refusal::MissingKey,
            Refusal::UnknownKey,
            Refusal::ExpiredKey,
            Refusal::DisabledKey,
            Refusal::TwoKeys,
            Refusal::OwnerBlocked { owner: "org" },
            Refusal::NetworkNotAllowed,
            Refusal::ModelNotAllowed { model: String::new() },
            Refusal::UnknownModel { model: String::new() },
            Refusal::UnknownRoute { method: String::new(), path: String::new() },
            Refusal::MethodNotAllowed { allowed: "" },
            Refusal::UpgradeNotSupported,
            Refusal::InvalidJson { reason: String::new() },
            Refusal::InvalidField { field: "", reason: String::new() },
            Refusal::DuplicateField { field: String::new() },
            Refusal::BodyTooLarge { limit: None },
            Refusal::UnsupportedEncoding { encoding: String::new() },
            Refusal::NotReady,
            Refusal::StateTooOld,
            Refusal::Misconfigured { option: "" },
            Refusal::CredentialUnavailable,
            Refusal::ProviderRefusedCredential { status: 401 },
            Refusal::UpstreamUnavailable,
            Refusal::UpstreamTimeout,
            Refusal::Internal { what: "" },
        ];
        for refusal in all {
            assert!(!meaning(refusal.code()).contains("does not know"), "{}", refusal.code());
        }
    }
}
