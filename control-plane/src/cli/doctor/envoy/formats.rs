//! What access logs and traces print: no credential, and the usage record.

use serde_json::Value;
use sluicegate_core::exchange::credential::CARRIERS;
use sluicegate_core::policy::names::FILTER_STATE;

use super::{Findings, is_type, list, string, strings};

/// Carriers of a credential in answers, beside those of requests.
const IN_ANSWERS: &[&str] = &["set-cookie"];
/// Headers that hold the path with its query, where `?key=` may stand.
const WITH_QUERY: &[&str] = &[":path", "x-envoy-original-path"];

/// Judges every log that sees the requests of a connection manager.
pub(super) fn judge(name: &str, listener: &Value, manager: &Value, findings: &mut Findings) {
    let about = format!("listener {name}");
    let routers = list(manager, "http_filters").filter_map(|filter| filter.get("typed_config"));
    let logs: Vec<&Value> = list(listener, "access_log")
        .chain(list(manager, "access_log"))
        .chain(routers.flat_map(|router| list(router, "upstream_log")))
        .collect();
    let printed: Vec<Printed> = logs.iter().flat_map(|log| printed(log)).chain(traced(manager)).collect();
    let mut good = true;
    for (header, what) in printed.iter().filter_map(|printed| Some((carrier(printed)?, printed))) {
        good = false;
        findings.bad(
            &format!("{about}: a log or trace shows the credential header {header} ({})", what.told()),
            "take it out of the format, then rotate the keys and provider credentials that were logged",
        );
    }
    if let Some(what) = printed.iter().find(|printed| shows_query(printed)) {
        good = false;
        findings.warning(
            &format!("{about}: a log shows queries, in which clients may send keys ({})", what.told()),
            "log %PATH(NQ)% instead",
        );
    }
    if good {
        findings.good(&format!("{about}: its logs show no credential header"));
    }
    if logs.iter().any(|log| log.pointer("/typed_config/log_format/text_format_source/filename").is_some()) {
        findings.warning(&format!("{about}: a log's format is in a file, which was not looked at"), "write it inline");
    }
    if list(manager, "access_log")
        .flat_map(printed_operators)
        .any(|(operator, args)| operator == "FILTER_STATE" && args.split(':').next() == Some(FILTER_STATE))
    {
        findings.good(&format!("{about}: its access log holds the usage record"));
    } else {
        findings.warning(
            &format!("{about}: no access log holds the usage record: `reconcile` cannot book what was lost"),
            &format!("end a line of it with %FILTER_STATE({FILTER_STATE}:PLAIN)%"),
        );
    }
}

/// Something of a request that a log prints.
#[derive(Debug)]
enum Printed {
    /// `%OPERATOR(args)%`
    Operator(String, String),
    /// A header that is named by itself.
    Header(String),
    /// The file log's own format, which has the path with its query.
    DefaultFormat,
}

impl Printed {
    fn told(&self) -> String {
        match self {
            Self::Operator(operator, args) if args.is_empty() => format!("%{operator}%"),
            Self::Operator(operator, args) => format!("%{operator}({args})%"),
            Self::Header(header) => header.clone(),
            Self::DefaultFormat => "Envoy's default format".to_owned(),
        }
    }
}

fn printed(log: &Value) -> Vec<Printed> {
    let config = log.get("typed_config").unwrap_or(&Value::Null);
    let mut all: Vec<Printed> = printed_operators(log).into_iter().map(|(o, a)| Printed::Operator(o, a)).collect();
    let mut texts = Vec::new();
    strings(config, "", &mut texts);
    // The gRPC loggers take names of headers.
    let named = texts.iter().filter(|(field, _)| field.ends_with("_headers_to_log"));
    all.extend(named.map(|(_, header)| Printed::Header(header.to_ascii_lowercase())));
    let writes_lines =
        [".FileAccessLog", ".StdoutAccessLog", ".StderrAccessLog"].iter().any(|name| is_type(config, name));
    let formats = ["log_format", "format", "json_format", "typed_json_format"];
    if writes_lines && !formats.iter().any(|field| config.get(*field).is_some()) {
        all.push(Printed::DefaultFormat);
    }
    all
}

/// Headers that traces carry.
fn traced(manager: &Value) -> Vec<Printed> {
    let tags = manager.get("tracing").into_iter().flat_map(|tracing| list(tracing, "custom_tags"));
    tags.filter_map(|tag| string(tag, "/request_header/name").map(|name| Printed::Header(name.to_ascii_lowercase())))
        .collect()
}

/// The operators of every format string in a log's configuration.
fn printed_operators(log: &Value) -> Vec<(String, String)> {
    let mut texts = Vec::new();
    strings(log.get("typed_config").unwrap_or(&Value::Null), "", &mut texts);
    texts.iter().flat_map(|(_, text)| operators(text)).collect()
}

/// The operators of a format: `%REQ(A?B):10%` is `REQ` and `A?B`.
fn operators(format: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('%') {
        let name_end = after.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
        let (name, tail) = after.split_at(name_end.unwrap_or(after.len()));
        let args = tail.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match args {
            Some((args, tail)) if !name.is_empty() => {
                found.push((name.to_owned(), args.to_owned()));
                rest = tail.split_once('%').map_or("", |(_, next)| next);
            }
            _ if !name.is_empty() && tail.starts_with('%') => {
                found.push((name.to_owned(), String::new()));
                rest = tail.get(1..).unwrap_or_default();
            }
            // No operator: `%%`, or text with a percent sign.
            _ => rest = after.strip_prefix('%').unwrap_or(after),
        }
    }
    found
}

/// The credential header that is printed.
fn carrier(printed: &Printed) -> Option<&'static str> {
    let mut carriers = CARRIERS.iter().chain(IN_ANSWERS).copied();
    match printed {
        Printed::Header(name) => carriers.find(|carrier| carrier == name),
        Printed::Operator(operator, args) => {
            let args = args.to_ascii_lowercase();
            // An expression may write a name in many ways: it suffices that it stands in it.
            carriers.find(|carrier| match operator.as_str() {
                "CEL" => args.contains(&format!("'{carrier}'")) || args.contains(&format!("\"{carrier}\"")),
                _ => args.split(['?', ':', ',']).any(|arg| arg.trim() == *carrier),
            })
        }
        Printed::DefaultFormat => None,
    }
}

fn shows_query(printed: &Printed) -> bool {
    match printed {
        Printed::DefaultFormat => true,
        Printed::Header(name) => WITH_QUERY.contains(&name.as_str()),
        Printed::Operator(operator, args) => match operator.as_str() {
            "REQ" => args.to_ascii_lowercase().split('?').any(|arg| WITH_QUERY.contains(&arg)),
            "PATH" => args.split(':').next() != Some("NQ"),
            "QUERY_PARAM" | "QUERY_PARAMS" => true,
            _ => false,
        },
    }
}
