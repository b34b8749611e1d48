//! Bodies and queries, read so that a fault names its field.

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Error;
use crate::admin::{Problem, ProblemBody};
use crate::store::Fault;
use crate::store::noun::path_of;

/// The largest request; a declarative file of some 50,000 keys.
const MAX_BODY_BYTES: usize = 16 << 20;
/// So much of a larger one is read and dropped: a client that is cut off while it sends does not read why.
const DRAINED_BYTES: usize = 64 << 20;

/// A body as it came.
pub struct Bytes(pub Vec<u8>);

impl<S: Send + Sync> FromRequest<S> for Bytes {
    type Rejection = Error;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Error> {
        // Who waits for leave to send is told before.
        let headers = request.headers();
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        if headers.contains_key(header::EXPECT) && announced.is_some_and(|length: usize| length > MAX_BODY_BYTES) {
            return Err(Error::TooLarge(MAX_BODY_BYTES));
        }
        let mut stream = request.into_body().into_data_stream();
        let (mut body, mut seen) = (Vec::new(), 0);
        while seen <= DRAINED_BYTES
            && let Some(chunk) = stream.next().await
        {
            let chunk = chunk.map_err(|e| Fault::new("", format!("the body broke off: {e}")))?;
            seen += chunk.len();
            if seen <= MAX_BODY_BYTES {
                body.extend_from_slice(&chunk);
            }
        }
        if seen <= MAX_BODY_BYTES { Ok(Self(body)) } else { Err(Error::TooLarge(MAX_BODY_BYTES)) }
    }
}

/// A JSON body.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        let Bytes(bytes) = Bytes::from_request(request, state).await?;
        refuse_nul_in(&bytes)?;
        let mut json = serde_json::Deserializer::from_slice(&bytes);
        let value = serde_path_to_error::deserialize(&mut json)
            .map_err(|e| Fault::new(path_of(e.path()), message(e.inner())))?;
        json.end().map_err(|e| Fault::new("", e.to_string()))?;
        Ok(Self(value))
    }
}

/// What is wrong with a value is told by its path; where in the text it stands is only told of what is no JSON.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((message, _)) if error.is_data() => message.to_owned(),
        _ => text,
    }
}

/// On every answer of the Admin API: by it a client knows that it speaks to a control plane, and to which.
pub const VERSION_HEADER: &str = "x-sluicegate-version";

/// Middleware: [`VERSION_HEADER`].
pub(super) async fn with_version(mut response: Response) -> Response {
    response.headers_mut().insert(VERSION_HEADER, HeaderValue::from_static(env!("CARGO_PKG_VERSION")));
    response
}

const NUL: &str = "must not hold a NUL character: Postgres has none in text";

/// Middleware: a URL whose path or query holds a NUL names nothing.
pub(super) async fn refuse_nul(request: Request, next: Next) -> Result<Response, Error> {
    match request.uri().path_and_query() {
        Some(url) if url.as_str().contains("%00") => Err(Fault::new("", format!("the URL {NUL}")).into()),
        _ => Ok(next.run(request).await),
    }
}

/// JSON can only write a NUL as an escape, and few bodies have one: those are looked through.
fn refuse_nul_in(json: &[u8]) -> Result<(), Fault> {
    if !json.windows(6).any(|bytes| bytes == b"\\u0000") {
        return Ok(());
    }
    let nul = serde_json::from_slice(json).ok().and_then(|value| nul_in(&value));
    nul.map_or(Ok(()), |path| Err(Fault::new(path.trim_start_matches('.'), NUL)))
}

/// The path of a string with a NUL.
fn nul_in(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => text.contains('\0').then(String::new),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(i, item)| nul_in(item).map(|rest| format!("[{i}]{rest}")))
        }
        Value::Object(fields) => fields.iter().find_map(|(name, value)| match nul_in(value) {
            Some(rest) => Some(format!(".{name}{rest}")),
            None => name.contains('\0').then(String::new),
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// The query of a URL.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(e) => {
                let text = e.body_text();
                let message = text.strip_prefix("Failed to deserialize query string: ").unwrap_or(&text);
                let named = message.split_once(": ").filter(|(field, _)| !field.contains(' '));
                let (field, message) = named.unwrap_or(("", message));
                Err(Fault::new(field, message).into())
            }
        }
    }
}

/// The parameters of a URL's path. Axum's own refuses in plain text.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(e) if e.status().is_client_error() => {
                Err(Fault::new("", format!("the URL's path: {}", e.body_text())).into())
            }
            Err(e) => Err(Error::Internal(e.body_text())),
        }
    }
}

pub(super) fn method_not_allowed() -> Response {
    let error = ProblemBody {
        code: "method_not_allowed".to_owned(),
        message: "this path does not take this method; GET /openapi.json lists what it takes".to_owned(),
        field: None,
    };
    (StatusCode::METHOD_NOT_ALLOWED, Json(Problem { error })).into_response()
}
