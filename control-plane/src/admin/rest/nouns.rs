//! The nouns: list, get, create, update, delete.

use axum::Json;
use axum::extract::{Extension, State};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{Body, Path, Query};
use super::{Error, Shared};
use crate::admin::auth::Actor;
use crate::admin::{IssuedKey, Page, Problem};
use crate::store::noun::{Credential, Group, Issuer, Key, Model, Org, Price, Provider, Stored, Team, User};

type Result<T> = std::result::Result<T, Error>;

/// Which part of a list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Paging {
    /// At most so many; 100 where absent, 1000 at most.
    #[serde(default, deserialize_with = "crate::store::number::optional")]
    pub limit: Option<u32>,
    /// The `next` of the part before.
    #[serde(default, deserialize_with = "crate::store::number::optional")]
    pub after: Option<i32>,
}

/// The routes of one noun. `create` may be given apart, where it answers more than the noun.
macro_rules! noun_routes {
    ($module:ident, $Noun:ident, $path:literal, $one:literal) => {
        noun_routes!(@common $module, $Noun, $path, $one, {
            #[utoipa::path(
                post, path = $path, tag = $path, operation_id = concat!("create ", stringify!($module)),
                request_body = $Noun,
                responses((status = 201, body = Stored<$Noun>), (status = "default", body = Problem))
            )]
            pub async fn create(
                State(service): State<Shared>,
                Extension(actor): Extension<Actor>,
                Body(noun): Body<$Noun>,
            ) -> Result<(StatusCode, Json<Stored<$Noun>>)> {
                Ok((StatusCode::CREATED, Json(service.create(&actor.0, &noun).await?)))
            }
        });
    };
    (@common $module:ident, $Noun:ident, $path:literal, $one:literal, { $($create:tt)* }) => {
        mod $module {
            use super::*;

            #[utoipa::path(
                get, path = $path, tag = $path, operation_id = concat!("list ", stringify!($module)),
                params(Paging),
                responses((status = 200, body = Page<Stored<$Noun>>), (status = "default", body = Problem))
            )]
            pub async fn list(
                State(service): State<Shared>,
                Query(paging): Query<Paging>,
            ) -> Result<Json<Page<Stored<$Noun>>>> {
                Ok(Json(service.list(paging.after, paging.limit).await?))
            }

            #[utoipa::path(
                get, path = $one, tag = $path, operation_id = concat!("get ", stringify!($module)),
                params(("name" = String, Path, description = "Its id or name")),
                responses((status = 200, body = Stored<$Noun>), (status = "default", body = Problem))
            )]
            pub async fn get(State(service): State<Shared>, Path(name): Path<String>) -> Result<Json<Stored<$Noun>>> {
                Ok(Json(service.get(&name).await?))
            }

            $($create)*

            #[utoipa::path(
                patch, path = $one, tag = $path, operation_id = concat!("update ", stringify!($module)),
                params(("name" = String, Path, description = "Its id or name")),
                request_body(
                    content = Object,
                    description = "The fields to change (JSON merge patch, RFC 7396): absent stays, null clears"
                ),
                responses((status = 200, body = Stored<$Noun>), (status = "default", body = Problem))
            )]
            pub async fn update(
                State(service): State<Shared>,
                Extension(actor): Extension<Actor>,
                Path(name): Path<String>,
                Body(patch): Body<Map<String, Value>>,
            ) -> Result<Json<Stored<$Noun>>> {
                Ok(Json(service.update(&actor.0, &name, patch).await?))
            }

            #[utoipa::path(
                delete, path = $one, tag = $path, operation_id = concat!("delete ", stringify!($module)),
                params(("name" = String, Path, description = "Its id or name")),
                responses((status = 204), (status = "default", body = Problem))
            )]
            pub async fn delete(
                State(service): State<Shared>,
                Extension(actor): Extension<Actor>,
                Path(name): Path<String>,
            ) -> Result<StatusCode> {
                service.delete::<$Noun>(&actor.0, &name).await?;
                Ok(StatusCode::NO_CONTENT)
            }

            pub fn routes() -> OpenApiRouter<Shared> {
                OpenApiRouter::new().routes(routes!(list, create)).routes(routes!(get, update, delete))
            }
        }
    };
}

noun_routes!(providers, Provider, "/v1/providers", "/v1/providers/{name}");
noun_routes!(credentials, Credential, "/v1/credentials", "/v1/credentials/{name}");
noun_routes!(models, Model, "/v1/models", "/v1/models/{name}");
noun_routes!(prices, Price, "/v1/prices", "/v1/prices/{name}");
noun_routes!(orgs, Org, "/v1/orgs", "/v1/orgs/{name}");
noun_routes!(teams, Team, "/v1/teams", "/v1/teams/{name}");
noun_routes!(users, User, "/v1/users", "/v1/users/{name}");
noun_routes!(issuers, Issuer, "/v1/issuers", "/v1/issuers/{name}");
noun_routes!(groups, Group, "/v1/groups", "/v1/groups/{name}");
noun_routes!(@common keys, Key, "/v1/keys", "/v1/keys/{name}", {
    /// The answer shows the secret, once.
    #[utoipa::path(
        post, path = "/v1/keys", tag = "/v1/keys", operation_id = "create keys", request_body = Key,
        responses((status = 201, body = IssuedKey), (status = "default", body = Problem))
    )]
    pub async fn create(
        State(service): State<Shared>,
        Extension(actor): Extension<Actor>,
        Body(key): Body<Key>,
    ) -> Result<(StatusCode, Json<IssuedKey>)> {
        Ok((StatusCode::CREATED, Json(service.create_key(&actor.0, &key).await?)))
    }
});

/// Gives a key a new secret, shown once; the old one is refused at once.
#[utoipa::path(
    post, path = "/v1/keys/{name}/rotate", tag = "/v1/keys", operation_id = "rotate keys",
    params(("name" = String, Path, description = "Its id, public id or <org>/<name>")),
    responses((status = 200, body = IssuedKey), (status = "default", body = Problem))
)]
async fn rotate_key(
    State(service): State<Shared>,
    Extension(actor): Extension<Actor>,
    Path(name): Path<String>,
) -> Result<Json<IssuedKey>> {
    Ok(Json(service.rotate_key(&actor.0, &name).await?))
}

/// Blocking and unblocking of one kind of owner.
macro_rules! block_routes {
    ($module:ident, $Noun:ident, $tag:literal, $block:literal, $unblock:literal) => {
        mod $module {
            use super::*;

            /// All its keys are refused until it is unblocked.
            #[utoipa::path(
                        post, path = $block, tag = $tag, operation_id = concat!("block ", stringify!($Noun)),
                        params(("name" = String, Path, description = "Its id or name")),
                        responses((status = 200, body = Stored<$Noun>), (status = "default", body = Problem))
                    )]
            pub async fn block(
                State(service): State<Shared>,
                Extension(actor): Extension<Actor>,
                Path(name): Path<String>,
            ) -> Result<Json<Stored<$Noun>>> {
                Ok(Json(service.set_blocked(&actor.0, &name, true).await?))
            }

            #[utoipa::path(
                        post, path = $unblock, tag = $tag, operation_id = concat!("unblock ", stringify!($Noun)),
                        params(("name" = String, Path, description = "Its id or name")),
                        responses((status = 200, body = Stored<$Noun>), (status = "default", body = Problem))
                    )]
            pub async fn unblock(
                State(service): State<Shared>,
                Extension(actor): Extension<Actor>,
                Path(name): Path<String>,
            ) -> Result<Json<Stored<$Noun>>> {
                Ok(Json(service.set_blocked(&actor.0, &name, false).await?))
            }

            pub fn routes() -> OpenApiRouter<Shared> {
                OpenApiRouter::new().routes(routes!(block)).routes(routes!(unblock))
            }
        }
    };
}

block_routes!(org_blocks, Org, "/v1/orgs", "/v1/orgs/{name}/block", "/v1/orgs/{name}/unblock");
block_routes!(team_blocks, Team, "/v1/teams", "/v1/teams/{name}/block", "/v1/teams/{name}/unblock");
block_routes!(user_blocks, User, "/v1/users", "/v1/users/{name}/block", "/v1/users/{name}/unblock");

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .merge(providers::routes())
        .merge(credentials::routes())
        .merge(models::routes())
        .merge(prices::routes())
        .merge(orgs::routes())
        .merge(org_blocks::routes())
        .merge(teams::routes())
        .merge(team_blocks::routes())
        .merge(users::routes())
        .merge(user_blocks::routes())
        .merge(keys::routes())
        .routes(routes!(rotate_key))
        .merge(issuers::routes())
        .merge(groups::routes())
}
