//! REST: JSON over HTTP, and the OpenAPI document derived from it.

mod extract;
mod nouns;
mod ops;
mod tokens;

use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router, middleware};
use utoipa::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;

pub use extract::VERSION_HEADER;

use super::{Error, Service, auth};
use crate::store::SummaryBy;

type Shared = Arc<Service>;

#[derive(OpenApi)]
#[openapi(
    info(title = "Sluicegate Admin API", description = "Everything an admin can see and change."),
    modifiers(&Bearer),
    components(schemas(SummaryBy)),
    security(("admin token" = []))
)]
struct Api;

struct Bearer;

impl utoipa::Modify for Bearer {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        api.components.get_or_insert_default().add_security_scheme("admin token", SecurityScheme::Http(scheme));
    }
}

fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(Api::openapi()).merge(nouns::routes()).merge(tokens::routes()).merge(ops::routes())
}

/// The OpenAPI document.
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes().into_openapi()
}

pub(super) fn router(service: Shared) -> Router {
    let (router, api) = routes().split_for_parts();
    router
        .fallback(|| async { Error::NotFound("there is no such route; GET /openapi.json lists them".to_owned()) })
        .method_not_allowed_fallback(|| async { extract::method_not_allowed() })
        .layer(middleware::from_fn(extract::refuse_nul))
        .layer(middleware::from_fn_with_state(Arc::clone(&service), auth::require_admin))
        // After the layer: the document is no secret.
        .route("/openapi.json", get(move || async move { Json(api) }))
        .with_state(service)
        .layer(middleware::map_response(extract::with_version))
}
