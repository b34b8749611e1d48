//! What a client of the Admin API can meet.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::store::{Fault, StoreError, WriteError};

/// Every way a call can fail.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    NotFound(String),
    #[error("{message}")]
    Conflict { field: String, message: String },
    #[error("{}", .0.message)]
    Invalid(Fault),
    #[error("send a valid admin token: Authorization: Bearer <token>")]
    Unauthorized,
    /// The token is good, but not for this.
    #[error("{0}")]
    Forbidden(String),
    /// The body has more than so many bytes.
    #[error("the request body is larger than {0} bytes")]
    TooLarge(usize),
    /// Worth another try.
    #[error("{0}")]
    Unavailable(String),
    /// Ours; what it was stands in the log.
    #[error("internal error; the control plane's log says more")]
    Internal(String),
}

impl Error {
    pub fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Conflict { .. } => StatusCode::CONFLICT,
            Self::Invalid(_) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFound(_) => "not_found",
            Self::Conflict { .. } => "conflict",
            Self::Invalid(_) => "invalid",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden(_) => "forbidden",
            Self::TooLarge(_) => "too_large",
            Self::Unavailable(_) => "unavailable",
            Self::Internal(_) => "internal",
        }
    }

    /// The path of what is wrong in the request, where one thing is.
    pub fn field(&self) -> Option<&str> {
        let field = match self {
            Self::Invalid(fault) => &fault.field,
            Self::Conflict { field, .. } => field,
            _ => return None,
        };
        (!field.is_empty()).then_some(field)
    }
}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        let text = error.to_string();
        match error {
            WriteError::NotFound { .. } => Self::NotFound(text),
            WriteError::Conflict { field, message } => Self::Conflict { field, message },
            WriteError::Invalid(fault) => Self::Invalid(fault),
            WriteError::Busy => Self::Unavailable(text),
            WriteError::Away(_) => Self::Unavailable("the database is away".to_owned()),
            WriteError::Keyring(_) | WriteError::Database(_) | WriteError::Store(_) => Self::Internal(text),
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        WriteError::from(error).into()
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        Self::Invalid(fault)
    }
}

/// The body of every refusal.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    pub error: ProblemBody,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ProblemBody {
    /// `not_found`, `conflict`, `invalid`, `unauthorized`, `forbidden`, `too_large`, `unavailable` or `internal`
    pub code: String,
    pub message: String,
    /// The path of what is wrong in the request.
    pub field: Option<String>,
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        if let Self::Internal(cause) = &self {
            tracing::error!(cause, "an Admin API call failed");
        }
        let error = ProblemBody {
            code: self.code().to_owned(),
            message: self.to_string(),
            field: self.field().map(str::to_owned),
        };
        let mut response = (self.status(), Json(Problem { error })).into_response();
        match self {
            Self::Unauthorized => {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Unavailable(_) => {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
