//! An Envoy by what its admin interface shows: values in, findings out.

mod formats;
mod listener;
mod plugin;
mod process;
mod routes;
#[cfg(test)]
mod tests;

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::finding::{Finding, Findings};

/// What was read from the admin interface.
#[derive(Debug)]
pub(super) struct Dumps {
    /// `/server_info`
    pub server_info: Value,
    /// `/config_dump`
    pub config: Value,
    /// `/certs`
    pub certs: Value,
    /// `POST /logging` without parameters, which lists the levels: a heading, then `  <logger>: <level>`.
    pub logging: String,
    /// `/stats`: `<name>: <value>`
    pub stats: String,
}

/// Looks at one Envoy; `url` is where its admin interface is.
pub(super) fn judge(url: &str, dumps: &Dumps, now: DateTime<Utc>) -> Vec<Finding> {
    let mut findings = Findings::about(format!("Envoy {url}"));
    process::judge(dumps, now, &mut findings);
    listener::judge(&dumps.config, &mut findings);
    findings.all
}

/// The dumps of one type, such as `ListenersConfigDump`.
fn sections<'a>(config: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    let configs = config.get("configs").and_then(Value::as_array).into_iter().flatten();
    configs.filter(move |dump| is_type(dump, name))
}

/// Whether a message is of the type that ends so.
fn is_type(message: &Value, name: &str) -> bool {
    message.get("@type").and_then(Value::as_str).is_some_and(|url| url.ends_with(name))
}

/// The items of a list; none where it is absent.
fn list<'a>(message: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    message.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn string<'a>(message: &'a Value, pointer: &str) -> Option<&'a str> {
    message.pointer(pointer)?.as_str()
}

/// A number; JSON of protobuf writes 64-bit ones as strings.
fn number(message: &Value, pointer: &str) -> Option<u64> {
    match message.pointer(pointer)? {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

/// A duration, `0.010s`, in milliseconds.
fn millis(message: &Value, pointer: &str) -> Option<u64> {
    let (seconds, fraction) = {
        let text = string(message, pointer)?.strip_suffix('s')?;
        text.split_once('.').unwrap_or((text, ""))
    };
    let fraction: String = fraction.chars().chain("000".chars()).take(3).collect();
    seconds.parse::<u64>().ok()?.checked_mul(1000)?.checked_add(fraction.parse().ok()?)
}

/// Every string in a value, with the name of the field that holds it.
fn strings<'a>(value: &'a Value, field: &'a str, into: &mut Vec<(&'a str, &'a str)>) {
    match value {
        Value::String(text) => into.push((field, text)),
        Value::Array(items) => items.iter().for_each(|item| strings(item, field, into)),
        Value::Object(fields) => fields.iter().for_each(|(name, value)| strings(value, name, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
