//! Subjects under the same load in turn, round after round, so that what else the machine does falls on all of them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use sluicegate_tests::stats::quantile;

use crate::table::Spread;
use crate::{cpu, load};

pub const CONNECTIONS: usize = 8;

#[derive(Debug)]
pub struct Subject {
    pub name: &'static str,
    pub to: SocketAddr,
    pub request: Bytes,
    /// The Envoy whose CPU time counts.
    pub envoy: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub rounds: usize,
    /// Of one subject in one round.
    pub time: Duration,
    /// Things done by a request, for the CPU time of one: 1, or the events of a stream.
    pub per_request: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Envoy's, per thing done, us.
    cpu: f64,
    p50: f64,
    p99: f64,
    per_second: f64,
}

/// Prints one line for each subject, with the ratio of its CPU time to that of the subject called `bare`.
pub async fn compare(title: &str, subjects: &[Subject], plan: Plan, others: &[u32]) -> Result<()> {
    let watched: Vec<u32> = subjects.iter().filter_map(|s| s.envoy).chain(others.iter().copied()).collect();
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); subjects.len()];
    for subject in subjects {
        load::run(subject.to, &subject.request, CONNECTIONS, plan.time / 2).await?;
    }
    cpu::quiet(&watched).await;
    for _ in 0..plan.rounds {
        for (subject, samples) in subjects.iter().zip(&mut samples) {
            samples.push(sample(subject, plan, &watched).await?);
        }
    }
    println!("\n{title}; {} rounds of {:?}: median [smallest-largest]", plan.rounds, plan.time);
    println!("{:<12}{:>26}{:>20}{:>24}{:>24}{:>9}", "", "Envoy CPU us", "x bare", "p50 us", "p99 us *", "per s");
    let bare = subjects.iter().zip(&samples).find(|(s, _)| s.name == "bare").map(|(_, samples)| samples.as_slice());
    for (subject, samples) in subjects.iter().zip(&samples) {
        line(subject, samples, bare.unwrap_or_default());
    }
    Ok(())
}

async fn sample(subject: &Subject, plan: Plan, watched: &[u32]) -> Result<Sample> {
    let used = || subject.envoy.map_or(Duration::ZERO, cpu::used);
    let before = used();
    let took = load::run(subject.to, &subject.request, CONNECTIONS, plan.time).await?;
    // What Envoy still reports about these requests is theirs, and it does so within 5 ms; what follows is ticking.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let used = used() - before;
    cpu::quiet(watched).await;
    let micros = |d: Duration| d.as_secs_f64() * 1e6;
    Ok(Sample {
        cpu: micros(used) / (took.len() * plan.per_request) as f64,
        p50: micros(quantile(&took, 0.50)),
        p99: micros(quantile(&took, 0.99)),
        per_second: took.len() as f64 / plan.time.as_secs_f64(),
    })
}

fn line(subject: &Subject, samples: &[Sample], bare: &[Sample]) {
    let spread = |of: fn(&Sample) -> f64| Spread::of(samples.iter().map(of));
    // Round by round: a slow round is slow for both.
    let ratio = Spread::of(samples.iter().zip(bare).map(|(s, b)| s.cpu / b.cpu));
    let (cpu, ratio) = match subject.envoy {
        Some(_) => (spread(|s| s.cpu).show(1), ratio.show(2)),
        None => ("-".to_owned(), "-".to_owned()),
    };
    let (p50, p99) = (spread(|s| s.p50).show(0), spread(|s| s.p99).show(0));
    println!("{:<12}{cpu:>26}{ratio:>20}{p50:>24}{p99:>24}{:>9.0}", subject.name, spread(|s| s.per_second).median);
}
