//! How tests run: one runtime for all, side by side unless they measure.

use std::future::Future;
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    // reqwest asks for it, also where it speaks plain text only. A second installation is no matter.
    let _ = rustls::crypto::ring::default_provider().install_default();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
});

/// Tests that wait share it, tests that load or measure have it to themselves.
static MACHINE: RwLock<()> = RwLock::new(());

/// Runs a test that mostly waits, beside others.
pub fn side_by_side(test: impl Future<Output = ()>) {
    let _machine = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    RUNTIME.block_on(test);
}

/// Runs a test that loads the machine or measures time, alone.
pub fn alone(test: impl Future<Output = ()>) {
    let _machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    RUNTIME.block_on(test);
}

/// Asks until the answer is `Ok`, every 10 ms; panics with the last refusal at the deadline.
pub async fn eventually<T, F>(what: &str, within: Duration, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = anyhow::Result<T>>,
{
    let deadline = Instant::now() + within;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(e) if Instant::now() >= deadline => panic!("not within {within:?}: {what}: {e:#}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
