//! Who calls.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::header;
use sha2::{Digest, Sha256};

use super::{Error, Service};

/// The name of the admin token of a request; audit rows carry it.
#[derive(Clone, Debug)]
pub(super) struct Actor(pub String);

/// Lets a request pass that carries an admin token. Only its hash is compared, by the database.
pub(super) async fn require_admin(
    State(service): State<Arc<Service>>,
    mut request: Request,
    next: Next,
) -> Result<Response, Error> {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.as_bytes().split_at_checked(7))
        .and_then(|(scheme, token)| scheme.eq_ignore_ascii_case(b"bearer ").then_some(token))
        .ok_or(Error::Unauthorized)?;
    let hash: [u8; 32] = Sha256::digest(token).into();
    let name = service.store().admin_by_token(&hash).await?.ok_or(Error::Unauthorized)?;
    request.extensions_mut().insert(Actor(name));
    Ok(next.run(request).await)
}
