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
            .map_err(|e| Fault::new(path_of(e.path()), e.inner().to_string()))?;
        json.end().map_err(|e| Fault::new("", e.to_string()))?;
        Ok(Self(value))
    }
}

/// The query of a URL.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        match axum::extract::Query::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(value)) => Ok(Self(value)),
            Err(e) => Err(Error::Invalid(Fault::new("", e.body_text()))),
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
