//! The file, usage, Envoys, the audit log.

use axum::Json;
use axum::extract::{Extension, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use super::extract::{Body, Bytes, Path, Query};
use super::{Error, Shared};
use crate::admin::auth::Actor;
use crate::admin::{ApplyOutcome, Diagnosis, Difference, Page, Problem};
use crate::store::{AuditEntry, Document, EnvoyRow, SummaryRow, UsageFilter, UsageRow};

type Result<T> = std::result::Result<T, Error>;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ApplyOptions {
    /// Only say what would change.
    #[serde(default)]
    dry_run: bool,
    /// Delete what a section of the file does not name.
    #[serde(default)]
    prune: bool,
}

/// Makes the store as the file says, in one commit or not at all.
#[utoipa::path(
    post, path = "/v1/apply", tag = "/v1/apply", operation_id = "apply", params(ApplyOptions), request_body = Document,
    responses((status = 200, body = ApplyOutcome), (status = "default", body = Problem))
)]
async fn apply(
    State(service): State<Shared>,
    Extension(actor): Extension<Actor>,
    Query(options): Query<ApplyOptions>,
    Body(document): Body<Document>,
) -> Result<Json<ApplyOutcome>> {
    Ok(Json(service.apply(&actor.0, &document, options.prune, options.dry_run).await?))
}

/// Everything as a file, without secrets.
#[utoipa::path(
    get, path = "/v1/export", tag = "/v1/apply", operation_id = "export",
    responses((status = 200, body = Document), (status = "default", body = Problem))
)]
async fn export(State(service): State<Shared>) -> Result<Json<Document>> {
    Ok(Json(service.export().await?))
}

/// What `/v1/usage` answers: attempts, or sums where `by` is given.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum UsageAnswer {
    Rows { items: Vec<UsageRow> },
    Summary { items: Vec<SummaryRow> },
}

#[utoipa::path(
    get, path = "/v1/usage", tag = "/v1/usage", operation_id = "usage", params(UsageFilter),
    responses((status = 200, body = UsageAnswer), (status = "default", body = Problem))
)]
async fn usage(State(service): State<Shared>, Query(filter): Query<UsageFilter>) -> Result<Json<UsageAnswer>> {
    Ok(Json(match filter.by {
        None => UsageAnswer::Rows { items: service.usage(&filter).await? },
        Some(_) => UsageAnswer::Summary { items: service.usage_summary(&filter).await? },
    }))
}

/// All attempts of one request.
#[derive(Debug, Serialize, ToSchema)]
struct Attempts {
    attempts: Vec<UsageRow>,
}

#[utoipa::path(
    get, path = "/v1/usage/{operation}", tag = "/v1/usage", operation_id = "explain",
    params(("operation" = String, Path, description = "The request id, as x-sluicegate-request-id says it")),
    responses((status = 200, body = Attempts), (status = "default", body = Problem))
)]
async fn explain(State(service): State<Shared>, Path(operation): Path<String>) -> Result<Json<Attempts>> {
    let operation =
        operation.parse::<Uuid>().map_err(|_| crate::store::Fault::new("operation", "must be a request id, a UUID"))?;
    Ok(Json(Attempts { attempts: service.explain(operation).await? }))
}

/// Adds to the ledger what only the access log saw. Doing it again adds nothing.
#[utoipa::path(
    post, path = "/v1/reconcile", tag = "/v1/usage", operation_id = "reconcile",
    request_body(content = String, description = "Lines of an Envoy's access log, 16 MiB at most", content_type = "text/plain"),
    responses((status = 200, body = Difference), (status = "default", body = Problem))
)]
async fn reconcile(State(service): State<Shared>, Bytes(log): Bytes) -> Result<Json<Difference>> {
    Ok(Json(service.reconcile(&String::from_utf8_lossy(&log)).await?))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Newest {
    /// At most so many; 100 where absent, 1000 at most.
    #[serde(default, deserialize_with = "crate::store::number::optional")]
    limit: Option<u32>,
    /// The `next` of the part before.
    #[serde(default, deserialize_with = "crate::store::number::optional")]
    after: Option<i64>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Envoys {
    items: Vec<EnvoyRow>,
}

#[utoipa::path(
    get, path = "/v1/envoys", tag = "/v1/envoys", operation_id = "envoys", params(Newest),
    responses((status = 200, body = Envoys), (status = "default", body = Problem))
)]
async fn envoys(State(service): State<Shared>, Query(newest): Query<Newest>) -> Result<Json<Envoys>> {
    Ok(Json(Envoys { items: service.envoys(newest.limit).await? }))
}

/// What is wrong with what is configured, as the control plane that answers sees it.
#[utoipa::path(
    get, path = "/v1/doctor", tag = "/v1/doctor", operation_id = "doctor",
    responses((status = 200, body = Diagnosis), (status = "default", body = Problem))
)]
async fn doctor(State(service): State<Shared>) -> Result<Json<Diagnosis>> {
    Ok(Json(service.doctor().await?))
}

/// The newest first.
#[utoipa::path(
    get, path = "/v1/audit", tag = "/v1/audit", operation_id = "audit", params(Newest),
    responses((status = 200, body = Page<AuditEntry>), (status = "default", body = Problem))
)]
async fn audit(State(service): State<Shared>, Query(newest): Query<Newest>) -> Result<Json<Page<AuditEntry>>> {
    Ok(Json(service.audit(newest.after, newest.limit).await?))
}

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(apply))
        .routes(routes!(export))
        .routes(routes!(usage))
        .routes(routes!(explain))
        .routes(routes!(reconcile))
        .routes(routes!(envoys))
        .routes(routes!(doctor))
        .routes(routes!(audit))
}
