//! Metrics in Envoy's own stats: gathered in the VM, handed over once a second.
//!
//! Envoy names a stat by one string; labels stand in it as `.label[value]` and are taken out by the `stats_tags` of the
//! bootstrap (`envoy/`). Labels are never what a client wrote: models and backends of the policy, routes, codes.

use std::collections::HashMap;

use sluicegate_core::exchange::Exchange;
use sluicegate_core::proto::dataplane::{Record, Source};
use sluicegate_core::refusal::Refusal;
use sluicegate_core::state::Head;

use crate::host::{self, Metric};

/// Distinct names a VM makes; whatever comes beyond is counted without labels. Envoy never forgets a stat.
const MAX_NAMES: usize = 4_000;
const OVERFLOW: &str = "sluicegate_metrics_overflow_total";

/// Token counts by kind, as the label `type` says it.
const KINDS: [&str; 4] = ["input", "cached", "output", "reasoning"];

/// What was counted since the last flush. Names are put together there, once for all requests of a second.
#[derive(Debug, Default)]
pub struct Metrics {
    ids: HashMap<String, u32>,
    /// By model and backend.
    sums: HashMap<(u32, u32), Sums>,
    refusals: HashMap<&'static str, u64>,
    gateway_us: Vec<u32>,
}

/// Of one model at one backend.
#[derive(Debug, Default)]
struct Sums {
    model: String,
    backend: String,
    tokens: [u64; KINDS.len()],
    cost_nano: u64,
    estimated: u64,
    retries: u64,
    /// By route and status.
    requests: HashMap<(&'static str, u32), u64>,
    first_token_ms: Vec<u32>,
    duration_ms: Vec<u32>,
}

impl Metrics {
    /// An admitted request is over.
    pub fn closed(&mut self, exchange: &Exchange, records: &[Record]) {
        for record in records {
            let sums = self.sums.entry((record.model, record.backend)).or_insert_with(|| {
                let backend = exchange.policy.backend(record.backend).map_or("none", |b| b.name.as_str());
                Sums { model: clean(exchange.model_name()), backend: clean(backend), ..Sums::default() }
            });
            sums.add(record, exchange.operation.name());
            if record.last {
                sample(&mut self.gateway_us, record.gateway_us);
            }
        }
    }

    /// A client got a refusal.
    pub fn refused(&mut self, refusal: &Refusal) {
        *self.refusals.entry(refusal.code()).or_default() += 1;
    }

    /// Hands everything over to Envoy.
    pub fn flush(&mut self, head: &Head, connected: bool) {
        for sums in std::mem::take(&mut self.sums).into_values() {
            self.flush_sums(&sums);
        }
        for (code, by) in std::mem::take(&mut self.refusals) {
            self.count(format!("sluicegate_refusals_total.code[{code}]"), by);
        }
        let gateway_us = std::mem::take(&mut self.gateway_us);
        self.record(Metric::Histogram, "sluicegate_gateway_us".to_owned(), gateway_us);
        let mut gauges = vec![
            ("sluicegate_policy_revision", head.policy.revision),
            ("sluicegate_key_revision", head.keys.revision),
            ("sluicegate_ready", u64::from(head.complete)),
        ];
        // Only the VM that holds a stream can say that there is one; the others would say there is none.
        if connected {
            gauges.push(("sluicegate_confirmed_unix_seconds", head.confirmed.wall / 1_000_000_000));
        }
        for (name, value) in gauges {
            self.record(Metric::Gauge, name.to_owned(), [value]);
        }
    }

    fn flush_sums(&mut self, sums: &Sums) {
        let labels = format!(".model[{}].backend[{}]", sums.model, sums.backend);
        for (kind, tokens) in KINDS.iter().zip(sums.tokens) {
            self.count(format!("sluicegate_tokens_total.type[{kind}]{labels}"), tokens);
        }
        self.count(format!("sluicegate_cost_nano_dollars_total{labels}"), sums.cost_nano);
        self.count(format!("sluicegate_estimated_total{labels}"), sums.estimated);
        self.count(format!("sluicegate_retries_total{labels}"), sums.retries);
        for ((route, status), by) in &sums.requests {
            self.count(format!("sluicegate_requests_total.route[{route}].status[{status}]{labels}"), *by);
        }
        for (name, values) in [
            ("sluicegate_time_to_first_token_ms", &sums.first_token_ms),
            ("sluicegate_request_duration_ms", &sums.duration_ms),
        ] {
            self.record(Metric::Histogram, format!("{name}.model[{}]", sums.model), values.iter().copied());
        }
    }

    /// A counter nothing was added to is not made.
    fn count(&mut self, name: String, by: u64) {
        if by > 0
            && let Some(id) = self.id(Metric::Counter, name)
        {
            let _ = host::increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX));
        }
    }

    fn record<V: Into<u64>>(&mut self, kind: Metric, name: String, values: impl IntoIterator<Item = V>) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_some()
            && let Some(id) = self.id(kind, name)
        {
            for value in values {
                let _ = host::record_metric(id, value.into());
            }
        }
    }

    fn id(&mut self, kind: Metric, name: String) -> Option<u32> {
        if let Some(id) = self.ids.get(&name) {
            return Some(*id);
        }
        let name = if self.ids.len() < MAX_NAMES { name } else { OVERFLOW.to_owned() };
        let kind = if name == OVERFLOW { Metric::Counter } else { kind };
        let id = host::define_metric(kind, &name).ok()?;
        self.ids.insert(name, id);
        Some(id)
    }
}

impl Sums {
    fn add(&mut self, record: &Record, route: &'static str) {
        let usage = record.usage.unwrap_or_default();
        let cached = usage.cache_read + usage.cache_write_5m + usage.cache_write_1h;
        for (sum, tokens) in self.tokens.iter_mut().zip([usage.input, cached, usage.output, usage.reasoning]) {
            *sum = sum.saturating_add(tokens);
        }
        self.cost_nano = self.cost_nano.saturating_add(record.cost_nano.map_or(0, |c| u64::try_from(c).unwrap_or(0)));
        self.estimated += u64::from(record.source == i32::from(Source::Estimated));
        self.retries += u64::from(record.attempt > 1);
        if record.last {
            *self.requests.entry((route, record.status)).or_default() += 1;
            if record.first_token_us > 0 {
                sample(&mut self.first_token_ms, record.first_token_us / 1000);
            }
            sample(&mut self.duration_ms, record.total_us / 1000);
        }
    }
}

/// Bounded: a flush is a second away.
fn sample(samples: &mut Vec<u32>, value: u32) {
    const MAX_SAMPLES: usize = 50_000;
    if samples.len() < MAX_SAMPLES {
        samples.push(value);
    }
}

/// Keeps a label's value from ending its label.
fn clean(value: &str) -> String {
    value.replace(['[', ']'], "_")
}
