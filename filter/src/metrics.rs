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

#[derive(Debug, Default)]
pub struct Metrics {
    ids: HashMap<String, u32>,
    counters: HashMap<String, i64>,
    samples: Vec<(String, u64)>,
}

impl Metrics {
    /// An admitted request is over.
    pub fn closed(&mut self, exchange: &Exchange, records: &[Record]) {
        let model = exchange.model_name();
        let route = exchange.operation.name();
        for record in records {
            let backend = exchange.policy.backend(record.backend).map_or("none", |b| b.name.as_str());
            let labels = format!(".model[{}].backend[{}]", clean(model), clean(backend));
            let usage = record.usage.unwrap_or_default();
            let cached = usage.cache_read + usage.cache_write_5m + usage.cache_write_1h;
            for (kind, tokens) in
                [("input", usage.input), ("cached", cached), ("output", usage.output), ("reasoning", usage.reasoning)]
            {
                if tokens > 0 {
                    self.count(format!("sluicegate_tokens_total.type[{kind}]{labels}"), tokens);
                }
            }
            if let Some(cost) = record.cost_nano.filter(|c| *c > 0) {
                self.count(format!("sluicegate_cost_nano_dollars_total{labels}"), cost.unsigned_abs());
            }
            if record.source == i32::from(Source::Estimated) {
                self.count(format!("sluicegate_estimated_total{labels}"), 1);
            }
            if record.attempt > 1 {
                self.count(format!("sluicegate_retries_total{labels}"), 1);
            }
            if record.last {
                self.count(format!("sluicegate_requests_total.route[{route}].status[{}]{labels}", record.status), 1);
                if record.first_token_us > 0 {
                    self.sample(
                        format!("sluicegate_time_to_first_token_ms.model[{}]", clean(model)),
                        record.first_token_us / 1000,
                    );
                }
                self.sample(format!("sluicegate_request_duration_ms.model[{}]", clean(model)), record.total_us / 1000);
                self.sample("sluicegate_gateway_us".to_owned(), record.gateway_us);
            }
        }
    }

    /// A client got a refusal.
    pub fn refused(&mut self, refusal: &Refusal) {
        self.count(format!("sluicegate_refusals_total.code[{}]", refusal.code()), 1);
    }

    /// Hands everything over to Envoy.
    pub fn flush(&mut self, head: &Head, connected: bool) {
        for (name, by) in std::mem::take(&mut self.counters) {
            if let Some(id) = self.id(Metric::Counter, name) {
                let _ = host::increment_metric(id, by);
            }
        }
        for (name, value) in std::mem::take(&mut self.samples) {
            if let Some(id) = self.id(Metric::Histogram, name) {
                let _ = host::record_metric(id, value);
            }
        }
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
            if let Some(id) = self.id(Metric::Gauge, name.to_owned()) {
                let _ = host::record_metric(id, value);
            }
        }
    }

    fn count(&mut self, name: String, by: u64) {
        let entry = self.counters.entry(name).or_default();
        *entry = entry.saturating_add(i64::try_from(by).unwrap_or(i64::MAX));
    }

    /// Bounded: a flush is a second away.
    fn sample(&mut self, name: String, value: u32) {
        const MAX_SAMPLES: usize = 50_000;
        if self.samples.len() < MAX_SAMPLES {
            self.samples.push((name, u64::from(value)));
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

/// Keeps a label's value from ending its label.
fn clean(value: &str) -> String {
    value.replace(['[', ']'], "_")
}
