//! What the gateway reads of a request, and what it changes.

use std::ops::Range;

use super::Operation;
use crate::json::{Edit, Edits, Kind, Member, ScanError, ScanErrorKind, Scanned, Scanner};
use crate::refusal::Refusal;

const CHAT: &[&str] = &["model", "stream", "stream_options"];
const EMBEDDINGS: &[&str] = &["model"];

/// What was read. Everything else in the body is between the client and the provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFields {
    /// The model's name as the client wrote it, JSON escapes decoded; not empty.
    pub model: String,
    /// The reply will be a stream.
    pub stream: bool,
    /// The client itself wants the usage of its stream.
    pub asked_usage: bool,
    /// Where the model's value stands, quotes included.
    model_at: Range<usize>,
    /// Makes the provider report the usage of a stream.
    usage_edit: Option<Edit>,
}

/// A scanner that looks for what [`read`] needs.
pub fn scanner(operation: Operation) -> Scanner {
    Scanner::new(match operation {
        Operation::ChatCompletions => CHAT,
        Operation::Embeddings => EMBEDDINGS,
    })
}

/// Reads the fields of a scanned body and checks their types.
pub fn read(scanned: &Scanned) -> Result<RequestFields, Refusal> {
    let model = scanned.get("model").ok_or(invalid("model", "is required"))?;
    let name: String = match (model.kind, &model.raw) {
        (Kind::String, Some(raw)) => {
            serde_json::from_slice(raw).map_err(|_| invalid("model", "is not valid Unicode"))?
        }
        (Kind::String, None) => return Err(invalid("model", "is too long")),
        (kind, _) => return Err(invalid("model", format!("must be a string, not {kind}"))),
    };
    if name.is_empty() {
        return Err(invalid("model", "must not be empty"));
    }
    let stream = match scanned.get("stream") {
        Some(member) => boolean(member).ok_or_else(|| wrong("stream", "a boolean", member.kind))?,
        None => false,
    };
    let (asked, edit) = usage_of_stream(scanned)?;
    Ok(RequestFields {
        model: name,
        stream,
        asked_usage: stream && asked,
        model_at: model.value.clone(),
        usage_edit: edit.filter(|_| stream),
    })
}

/// The changes that make a body right for a backend: its model, and usage on streams.
pub fn edits(fields: &RequestFields, backend_model: &str) -> Edits {
    let mut edits = Edits::default();
    let mut taken = true;
    if fields.model != backend_model {
        let with = serde_json::Value::from(backend_model).to_string().into_bytes();
        taken &= edits.push(Edit { range: fields.model_at.clone(), with });
    }
    if let Some(edit) = &fields.usage_edit {
        taken &= edits.push(edit.clone());
    }
    debug_assert!(taken, "two members of one object do not overlap");
    edits
}

/// What a client is told about a body that is no JSON object.
pub fn refusal(error: ScanError) -> Refusal {
    match error.kind {
        ScanErrorKind::Duplicate(field) => Refusal::DuplicateField { field: field.to_owned() },
        ScanErrorKind::Spelling(field) => {
            invalid(field, "stands here in another spelling, which some servers would read")
        }
        _ => Refusal::InvalidJson { reason: error.to_string() },
    }
}

/// Whether `stream_options` asks for usage already, and the edit that makes it ask.
fn usage_of_stream(scanned: &Scanned) -> Result<(bool, Option<Edit>), Refusal> {
    let put = |range, with: &str| Some(Edit { range, with: with.as_bytes().to_vec() });
    let Some(options) = scanned.get("stream_options") else {
        // The object is not empty: it has a model.
        let after_brace = scanned.body_start..scanned.body_start;
        return Ok((false, put(after_brace, r#""stream_options":{"include_usage":true},"#)));
    };
    if options.kind == Kind::Null {
        return Ok((false, put(options.value.clone(), r#"{"include_usage":true}"#)));
    }
    if options.kind != Kind::Object {
        return Err(wrong("stream_options", "an object", options.kind));
    }
    let raw = options.raw.as_deref().ok_or(invalid("stream_options", "is too long"))?;
    let inner = scan_options(raw).map_err(|error| match error.kind {
        ScanErrorKind::Duplicate(_) => Refusal::DuplicateField { field: "stream_options.include_usage".to_owned() },
        kind => invalid("stream_options", format!("holds {kind}")),
    })?;
    let start = options.value.start;
    match inner.get("include_usage") {
        None => {
            let after_brace = start + inner.body_start;
            let comma = if inner.empty { "" } else { "," };
            Ok((false, put(after_brace..after_brace, &format!(r#""include_usage":true{comma}"#))))
        }
        Some(member) => match boolean(member) {
            Some(true) => Ok((true, None)),
            Some(false) => Ok((false, put(start + member.value.start..start + member.value.end, "true"))),
            None => Err(wrong("stream_options.include_usage", "a boolean", member.kind)),
        },
    }
}

fn scan_options(raw: &[u8]) -> Result<Scanned, ScanError> {
    let mut scanner = Scanner::new(&["include_usage"]);
    scanner.push(raw)?;
    scanner.finish()
}

/// `null` is how SDKs say that a field is not set.
fn boolean(member: &Member) -> Option<bool> {
    match (member.kind, member.raw.as_deref()) {
        (Kind::Bool, Some(raw)) => Some(raw == b"true"),
        (Kind::Null, _) => Some(false),
        _ => None,
    }
}

fn wrong(field: &'static str, expected: &str, found: Kind) -> Refusal {
    invalid(field, format!("must be {expected}, not {found}"))
}

fn invalid(field: &'static str, reason: impl Into<String>) -> Refusal {
    Refusal::InvalidField { field, reason: reason.into() }
}

#[cfg(test)]
mod tests;
