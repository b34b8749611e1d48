//! Host calls of the filter, by a build of it that counts them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use scripted_provider::Provider;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::{eventually, tools};

use crate::chat::EVENTS;
use crate::compare::CONNECTIONS;
use crate::load;
use crate::sluicegate::{STREAM, Sluicegate, WHOLE};

/// By counter: `streams.<call>` in the callbacks of requests, `ticks.<call>` in those of the root.
type Calls = BTreeMap<String, u64>;

pub async fn print(whole: &Provider, stream: &Provider) -> Result<()> {
    let filter = tools::workspace().join("target/count/wasm32-wasip1/wasm/sluicegate_filter.wasm");
    ensure!(filter.exists(), "{} is missing: `make bench` builds it", filter.display());
    let sluicegate = Sluicegate::start(whole, stream, Some(filter)).await?;
    let (chat, chats) = of(&sluicegate, WHOLE, Duration::from_secs(1)).await?;
    let (streamed, streams) = of(&sluicegate, STREAM, Duration::from_secs(2)).await?;
    println!("\nhost calls of the filter, by request ({chats} chats, {streams} streams of {EVENTS} events)");
    println!("{:<44}{:>12}{:>12}", "", "chat", "stream");
    let share = |calls: &Calls, name: &str, n: usize| calls.get(name).copied().unwrap_or(0) as f64 / n as f64;
    for name in chat.keys() {
        let (chat, streamed) = (share(&chat, name, chats), share(&streamed, name, streams));
        if chat > 0.005 || streamed > 0.005 {
            println!("{name:<44}{chat:>12.2}{streamed:>12.2}");
        }
    }
    let all = |calls: &Calls, n: usize| {
        calls.iter().filter(|(name, _)| name.starts_with("streams.")).map(|(_, c)| *c).sum::<u64>() as f64 / n as f64
    };
    println!("{:<44}{:>12.2}{:>12.2}", "all but the ticks'", all(&chat, chats), all(&streamed, streams));
    Ok(())
}

/// What some requests for `model` called, and how many they were.
async fn of(sluicegate: &Sluicegate, model: &str, time: Duration) -> Result<(Calls, usize)> {
    let envoy = &sluicegate.stack.envoy;
    let request = sluicegate.request(model, 2_048);
    let before = settled(envoy).await;
    let requests = load::run(envoy.addr(), &request, CONNECTIONS, time).await?.len();
    let mut calls = settled(envoy).await;
    for (name, calls) in &mut calls {
        *calls -= before.get(name).copied().unwrap_or(0);
    }
    Ok((calls, requests))
}

/// The counters once requests add nothing more to them; they are published by ticks.
async fn settled(envoy: &Envoy) -> Calls {
    let mut last = Calls::new();
    for _ in 0..2 {
        last = eventually("the counts stand still", Duration::from_secs(10), || async {
            let before = counters(envoy).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let after = counters(envoy).await?;
            let streams =
                |calls: &Calls| calls.iter().filter(|(n, _)| n.starts_with("streams.")).map(|(_, c)| c).sum::<u64>();
            ensure!(streams(&before) == streams(&after));
            Ok(after)
        })
        .await;
    }
    last
}

async fn counters(envoy: &Envoy) -> Result<Calls> {
    let page = envoy.page("/stats?filter=host_calls").await?;
    let lines = page.lines().filter_map(|line| line.split_once("host_calls.")?.1.split_once(": "));
    Ok(lines.filter_map(|(name, calls)| Some((name.to_owned(), calls.parse().ok()?))).collect())
}
