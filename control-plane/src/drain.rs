//! `sluicegate drain`: runs beside an Envoy that somebody else stops, and lets its streams end first.
//!
//! An Envoy that gets a SIGTERM drops what runs. This process gets one at the same time: it makes Envoy tell its clients
//! to connect elsewhere (`Connection: close`, GOAWAY), waits until no request runs, and only then answers `GET /drained`, on
//! which whoever stops Envoy waits (in Kubernetes, a `preStop` hook). `GET /stats/prometheus` are Envoy's metrics: its admin
//! port, which can do more than show them, stays on loopback.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use reqwest::Client;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::serve::stop_signal;

/// How often Envoy is asked what runs.
const INTERVAL: Duration = Duration::from_millis(250);
/// How long new requests may come, for those in front hear late that this Envoy is going.
const SETTLE: Duration = Duration::from_secs(5);
/// Envoy answers from memory, at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the answers to `/drained` may take to leave.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Waits beside an Envoy for SIGTERM, then lets its streams end
///
/// Answers `GET /drained` once no request runs, and `GET /stats/prometheus` with Envoy's metrics.
#[derive(Debug, clap::Args)]
pub struct DrainArgs {
    /// Envoy's admin port
    #[arg(long, default_value = "127.0.0.1:9901")]
    admin: SocketAddr,
    /// Where `/drained` and `/stats/prometheus` are asked for
    #[arg(long, default_value = "127.0.0.1:9902")]
    listen: SocketAddr,
    /// Seconds after which streams that still run are given up
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    longest: u64,
}

/// Envoy's admin interface.
#[derive(Clone, Debug)]
struct Envoy {
    client: Client,
    address: SocketAddr,
}

impl Envoy {
    fn new(address: SocketAddr) -> reqwest::Result<Self> {
        // It is on this machine: nothing of TLS is needed.
        Ok(Self { client: Client::builder().tls_certs_only([]).timeout(PATIENCE).no_proxy().build()?, address })
    }

    async fn get(&self, path: &str) -> reqwest::Result<String> {
        self.client.get(format!("http://{}{path}", self.address)).send().await?.error_for_status()?.text().await
    }

    /// From now on each reply tells its client to connect elsewhere.
    async fn fail_health_checks(&self) -> reqwest::Result<()> {
        let url = format!("http://{}/healthcheck/fail", self.address);
        self.client.post(url).send().await?.error_for_status().map(drop)
    }

    /// Requests of clients that run.
    async fn running(&self) -> reqwest::Result<u64> {
        self.get("/stats?filter=downstream_rq_active$").await.map(|stats| running(&stats))
    }
}

/// The sum over all listeners but the admin's, which counts the question itself.
fn running(stats: &str) -> u64 {
    let gauges = stats.lines().filter_map(|line| line.split_once(": "));
    let ours = gauges.filter(|(name, _)| name.starts_with("http.") && !name.starts_with("http.admin."));
    ours.filter_map(|(_, value)| value.trim().parse::<u64>().ok()).sum()
}

/// # Errors
/// Where it cannot listen.
pub async fn run(args: DrainArgs) -> anyhow::Result<()> {
    let envoy = Envoy::new(args.admin)?;
    let drained = CancellationToken::new();
    // Before anybody can see that it runs: the first process of a container ignores a signal that it does not handle.
    let stop = stop_signal();
    let socket = TcpListener::bind(args.listen).await?;
    let ended = drained.clone();
    let server = axum::serve(socket, router(envoy.clone(), drained.clone()))
        .with_graceful_shutdown(async move { ended.cancelled().await });
    let server = tokio::spawn(async move { server.await });
    let signal = stop.await;
    tracing::info!(signal, "draining");
    wait(&envoy, Duration::from_secs(args.longest)).await;
    drained.cancel();
    // A scrape that hangs is not waited for.
    let _ = tokio::time::timeout(LAST_WORDS, server).await;
    Ok(())
}

fn router(envoy: Envoy, drained: CancellationToken) -> Router {
    let metrics = move || async move { envoy.get("/stats/prometheus").await.map_err(|_| StatusCode::BAD_GATEWAY) };
    let wait = move || async move {
        drained.cancelled().await;
        "drained\n"
    };
    Router::new().route("/drained", get(wait)).route("/stats/prometheus", get(metrics))
}

/// Until no request runs or Envoy is gone, [`SETTLE`] at least and `longest` at most.
async fn wait(envoy: &Envoy, longest: Duration) {
    let start = Instant::now();
    loop {
        // Again each time: the first may have come before Envoy listened.
        let told = envoy.fail_health_checks().await;
        let (past, running) = (start.elapsed(), envoy.running().await);
        match (told, running) {
            (Ok(()), Ok(0)) if past >= SETTLE => return tracing::info!("no request runs"),
            (Ok(()), Ok(running)) if past >= longest => {
                return tracing::warn!(running, "streams are cut: it took too long");
            }
            (Err(error), _) | (_, Err(error)) if past >= longest.min(SETTLE) => {
                return tracing::warn!(%error, "Envoy does not answer");
            }
            _ => tokio::time::sleep(INTERVAL).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_what_clients_asked_for() {
        let stats = "http.admin.downstream_rq_active: 1\nhttp.ingress.downstream_rq_active: 2\n\
                     listener.0.0.0.0_10000.downstream_rq_active: 9\nhttp.other.downstream_rq_active: 3\n";
        assert_eq!(running(stats), 5);
        assert_eq!(running(""), 0);
    }
}
