//! The HTTP port: the Admin API, health, metrics.

use std::sync::LazyLock;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio_util::sync::CancellationToken;

/// How often old histogram samples are folded.
const UPKEEP: Duration = Duration::from_secs(5);

/// The process has one recorder, however many control planes are in it (tests).
static METRICS: LazyLock<Option<PrometheusHandle>> =
    LazyLock::new(|| match PrometheusBuilder::new().install_recorder() {
        Ok(handle) => Some(handle),
        Err(error) => {
            tracing::error!(%error, "no metrics");
            None
        }
    });

/// `/healthz`, `/readyz` and `/metrics` beside `admin`.
///
/// Ready means: the database was reached once and the ports are bound. It stays so when the database goes away, for the
/// Envoys are then served what is known; only a stopping control plane is not ready.
pub fn router(admin: Router, stop: CancellationToken) -> Router {
    let ready = move || async move {
        if stop.is_cancelled() { (StatusCode::SERVICE_UNAVAILABLE, "stopping\n") } else { (StatusCode::OK, "ready\n") }
    };
    let metrics = || async { METRICS.as_ref().map(PrometheusHandle::render).ok_or(StatusCode::SERVICE_UNAVAILABLE) };
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .merge(admin)
}

/// Keeps the metrics small until `stop`.
pub async fn upkeep(stop: CancellationToken) {
    let mut tick = tokio::time::interval(UPKEEP);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = tick.tick() => METRICS.iter().for_each(PrometheusHandle::run_upkeep),
        }
    }
}
