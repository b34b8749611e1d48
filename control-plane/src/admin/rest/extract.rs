//! Bodies and queries, read so that a fault names its field.

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use serde::de::DeserializeOwned;

use super::Error;
use crate::admin::{Problem, ProblemBody};
use crate::store::Fault;
use crate::store::noun::path_of;

/// A JSON body.
pub struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Error;

    async fn from_request(request: Request, state: &S) -> Result<Self, Error> {
        let bytes = axum::body::Bytes::from_request(request, state)
            .await
            .map_err(|e| Error::Invalid(Fault::new("", e.body_text())))?;
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
                Err(Error::Invalid(Fault::new("", message)))
            }
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
