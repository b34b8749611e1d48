//! Tokens of Envoys and of admins.

use axum::Json;
use axum::extract::{Extension, State};
use http::StatusCode;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Body, Path, Query};
use super::nouns::Paging;
use super::{Error, Shared};
use crate::admin::auth::Actor;
use crate::admin::{IssuedAdminToken, IssuedNodeToken, Page, Problem};
use crate::store::{AdminToken, NewAdminToken, NewNodeToken, NodeToken};

type Result<T> = std::result::Result<T, Error>;

#[utoipa::path(
    get, path = "/v1/node-tokens", tag = "/v1/node-tokens", operation_id = "list node tokens", params(Paging),
    responses((status = 200, body = Page<NodeToken>), (status = "default", body = Problem))
)]
async fn list_node_tokens(
    State(service): State<Shared>,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<NodeToken>>> {
    Ok(Json(service.node_tokens(paging.after, paging.limit).await?))
}

/// The answer shows the token and its seal key, once.
#[utoipa::path(
    post, path = "/v1/node-tokens", tag = "/v1/node-tokens", operation_id = "create node tokens",
    request_body = NewNodeToken,
    responses((status = 201, body = IssuedNodeToken), (status = "default", body = Problem))
)]
async fn create_node_token(
    State(service): State<Shared>,
    Extension(actor): Extension<Actor>,
    Body(new): Body<NewNodeToken>,
) -> Result<(StatusCode, Json<IssuedNodeToken>)> {
    Ok((StatusCode::CREATED, Json(service.create_node_token(&actor.0, &new).await?)))
}

/// Ends a token.
#[utoipa::path(
    delete, path = "/v1/node-tokens/{name}", tag = "/v1/node-tokens", operation_id = "revoke node tokens",
    params(("name" = String, Path, description = "Its id or name")),
    responses((status = 204), (status = "default", body = Problem))
)]
async fn revoke_node_token(
    State(service): State<Shared>,
    Extension(actor): Extension<Actor>,
    Path(name): Path<String>,
) -> Result<StatusCode> {
    service.revoke_node_token(&actor.0, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(
    get, path = "/v1/admin-tokens", tag = "/v1/admin-tokens", operation_id = "list admin tokens", params(Paging),
    responses((status = 200, body = Page<AdminToken>), (status = "default", body = Problem))
)]
async fn list_admin_tokens(
    State(service): State<Shared>,
    Query(paging): Query<Paging>,
) -> Result<Json<Page<AdminToken>>> {
    Ok(Json(service.admin_tokens(paging.after, paging.limit).await?))
}

/// The answer shows the token, once.
#[utoipa::path(
    post, path = "/v1/admin-tokens", tag = "/v1/admin-tokens", operation_id = "create admin tokens",
    request_body = NewAdminToken,
    responses((status = 201, body = IssuedAdminToken), (status = "default", body = Problem))
)]
async fn create_admin_token(
    State(service): State<Shared>,
    Extension(actor): Extension<Actor>,
    Body(new): Body<NewAdminToken>,
) -> Result<(StatusCode, Json<IssuedAdminToken>)> {
    Ok((StatusCode::CREATED, Json(service.create_admin_token(&actor.0, &new).await?)))
}

/// Deletes a token; the last one stays.
#[utoipa::path(
    delete, path = "/v1/admin-tokens/{name}", tag = "/v1/admin-tokens", operation_id = "revoke admin tokens",
    params(("name" = String, Path, description = "Its id or name")),
    responses((status = 204), (status = "default", body = Problem))
)]
async fn revoke_admin_token(
    State(service): State<Shared>,
    Extension(actor): Extension<Actor>,
    Path(name): Path<String>,
) -> Result<StatusCode> {
    service.revoke_admin_token(&actor.0, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(list_node_tokens, create_node_token))
        .routes(routes!(revoke_node_token))
        .routes(routes!(list_admin_tokens, create_admin_token))
        .routes(routes!(revoke_admin_token))
}
