//! From the answer to a revocation until Envoy refuses the key.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sluicegate_tests::stats::{longest, quantile};

use crate::load::{self, Connection};
use crate::sluicegate::Sluicegate;

const REVOCATIONS: usize = 200;

pub async fn print(sluicegate: &Sluicegate, keys: i32) -> Result<()> {
    let mut took = Vec::new();
    let mut connection = Connection::open(sluicegate.stack.envoy.addr()).await?;
    for i in 0..REVOCATIONS {
        let key = sluicegate.new_key(&format!("revoked-{keys}-{i}")).await?;
        let ask = load::request("GET", "/v1/models", &key.secret, "");
        until(200, &ask, &mut connection).await?;
        sluicegate.stack.admin.revoke(key.id).await?;
        took.push(until(401, &ask, &mut connection).await?);
    }
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|q| millis(quantile(&took, q)));
    let max = millis(longest(&took));
    println!("{keys:>12}{REVOCATIONS:>14}{p50:>10.2}{p90:>10.2}{p99:>10.2}{max:>10.2}");
    Ok(())
}

/// Asks as fast as one connection can; the time until the reply with status `wanted` has come.
async fn until(wanted: u16, ask: &[u8], connection: &mut Connection) -> Result<Duration> {
    let start = Instant::now();
    while connection.ask(ask).await? != wanted {
        ensure!(start.elapsed() < Duration::from_secs(10), "no {wanted} within 10 s");
    }
    Ok(start.elapsed())
}
