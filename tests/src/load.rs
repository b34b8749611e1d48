//! A steady stream of requests, sent when they are due whatever became of the ones before (an open loop).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

/// What came of the requests.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    pub sent: u64,
    /// By `200`, by `<status> <code of the error>`, or by what broke.
    pub counts: BTreeMap<String, u64>,
    /// `x-sluicegate-request-id` of every 200.
    pub operations: Vec<String>,
    /// Of the 200s, in order of their end.
    pub latencies: Vec<Duration>,
}

impl Outcomes {
    pub fn count(&self, outcome: &str) -> u64 {
        self.counts.get(outcome).copied().unwrap_or(0)
    }

    /// Everything but 200.
    pub fn failures(&self) -> BTreeMap<String, u64> {
        self.counts.iter().filter(|(outcome, _)| *outcome != "200").map(|(o, n)| (o.clone(), *n)).collect()
    }
}

/// Load that goes on until it is stopped.
#[derive(Debug)]
pub struct Load {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
    outcomes: Arc<Mutex<Outcomes>>,
}

impl Load {
    /// Sends `body` to `url` under `key`, `per_second` times a second.
    pub fn start(url: String, key: String, body: String, per_second: u32) -> Self {
        let outcomes = Arc::new(Mutex::new(Outcomes::default()));
        let (stop, stopped) = watch::channel(false);
        let request = Arc::new(Shot { client: client(), url, key, body });
        let task = tokio::spawn(fire(request, per_second, stopped, outcomes.clone()));
        Self { stop, task, outcomes }
    }

    /// So far.
    pub fn outcomes(&self) -> Outcomes {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends no more, waits for what is under way.
    pub async fn stop(self) -> Outcomes {
        self.stop.send_replace(true);
        self.task.await.expect("the load does not panic");
        Arc::try_unwrap(self.outcomes).map_or_else(
            |shared| shared.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            |own| own.into_inner().unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// Waits until `n` more requests ended with a 200.
    pub async fn successes(&self, n: u64) {
        let goal = self.outcomes().count("200") + n;
        crate::run::eventually("the load succeeds", Duration::from_secs(60), || async {
            let outcomes = self.outcomes();
            anyhow::ensure!(outcomes.count("200") >= goal, "{:?}", outcomes.counts);
            Ok(())
        })
        .await;
    }
}

struct Shot {
    client: reqwest::Client,
    url: String,
    key: String,
    body: String,
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().timeout(Duration::from_secs(30)).pool_max_idle_per_host(256).build().expect("a client")
}

async fn fire(shot: Arc<Shot>, per_second: u32, mut stop: watch::Receiver<bool>, outcomes: Arc<Mutex<Outcomes>>) {
    let mut due = tokio::time::interval(Duration::from_secs(1) / per_second.max(1));
    due.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut under_way = JoinSet::new();
    loop {
        tokio::select! {
            _ = due.tick() => {}
            _ = stop.wait_for(|s| *s) => break,
        }
        outcomes.lock().unwrap_or_else(PoisonError::into_inner).sent += 1;
        let (shot, outcomes) = (shot.clone(), outcomes.clone());
        under_way.spawn(async move {
            let start = Instant::now();
            let (outcome, operation) = one(&shot).await;
            let mut all = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            if outcome == "200" {
                all.latencies.push(start.elapsed());
                all.operations.extend(operation);
            }
            *all.counts.entry(outcome).or_default() += 1;
        });
        while under_way.try_join_next().is_some() {}
    }
    while under_way.join_next().await.is_some() {}
}

async fn one(shot: &Shot) -> (String, Option<String>) {
    let request = shot.client.post(&shot.url).bearer_auth(&shot.key).header("content-type", "application/json");
    let reply = match request.body(shot.body.clone()).send().await {
        Ok(reply) => reply,
        Err(e) if e.is_connect() => return ("connection refused".to_owned(), None),
        Err(e) if e.is_timeout() => return ("timeout".to_owned(), None),
        Err(_) => return ("broken before the head".to_owned(), None),
    };
    let status = reply.status().as_u16();
    let operation = reply.headers().get("x-sluicegate-request-id").and_then(|v| v.to_str().ok()).map(str::to_owned);
    match reply.bytes().await {
        Err(_) => (format!("{status} broken off"), operation),
        Ok(_) if status == 200 => ("200".to_owned(), operation),
        Ok(body) => {
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
            let code = body.pointer("/error/code").and_then(|c| c.as_str()).unwrap_or("without code");
            (format!("{status} {code}"), operation)
        }
    }
}
