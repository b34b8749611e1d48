//! Envoy processes seen: what each has in force, and the policy it refused last.

use std::collections::HashMap;

use sluicegate_core::proto::dataplane::Standing;
use sqlx::types::Json;

use super::{Store, StoreError};

/// What an Envoy said of itself.
#[derive(Clone, Debug)]
pub struct EnvoyReport {
    pub boot: u64,
    pub node: String,
    pub group_id: i32,
    pub filter_version: String,
    pub envoy_version: String,
    pub standing: Standing,
}

/// A policy that an Envoy judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub boot: u64,
    pub revision: u64,
    /// The field that is wrong and why; `None` where the policy was taken.
    pub refused: Option<(String, String)>,
}

impl Store {
    /// Writes `reports`, at most one per boot, in one statement. Returns how many traps each known boot had told of before.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn note_envoys(&self, reports: &[EnvoyReport]) -> Result<HashMap<u64, u32>, StoreError> {
        let all = |number: fn(&Standing) -> u64| -> Vec<i64> {
            reports.iter().map(|r| number(&r.standing).cast_signed()).collect()
        };
        let before: Vec<(i64, i64)> = sqlx::query_as(
            "with before as (
               select boot, coalesce((standing->>'traps')::bigint, 0) as traps from envoy where boot = any($1::bigint[])),
             written as (
             insert into envoy (boot, node, group_id, filter_version, envoy_version, ready, policy_revision, key_revision,
               blocked_revision, standing)
             select * from unnest($1::bigint[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::boolean[],
               $7::bigint[], $8::bigint[], $9::bigint[], $10::jsonb[])
             on conflict (boot) do update set
               node = excluded.node, group_id = excluded.group_id, filter_version = excluded.filter_version,
               envoy_version = excluded.envoy_version, ready = excluded.ready,
               policy_revision = excluded.policy_revision, key_revision = excluded.key_revision,
               blocked_revision = excluded.blocked_revision, standing = excluded.standing, last_seen = now())
             select boot, traps from before",
        )
        .bind(reports.iter().map(|r| r.boot.cast_signed()).collect::<Vec<_>>())
        .bind(reports.iter().map(|r| r.node.as_str()).collect::<Vec<_>>())
        .bind(reports.iter().map(|r| r.group_id).collect::<Vec<_>>())
        .bind(reports.iter().map(|r| r.filter_version.as_str()).collect::<Vec<_>>())
        .bind(reports.iter().map(|r| r.envoy_version.as_str()).collect::<Vec<_>>())
        .bind(reports.iter().map(|r| r.standing.ready).collect::<Vec<_>>())
        .bind(all(|s| s.policy_revision))
        .bind(all(|s| s.key_revision))
        .bind(all(|s| s.blocked_revision))
        .bind(reports.iter().map(|r| Json(standing_json(&r.standing))).collect::<Vec<_>>())
        .fetch_all(&self.pool)
        .await?;
        Ok(before.into_iter().map(|(boot, traps)| (boot.cast_unsigned(), u32::try_from(traps).unwrap_or(0))).collect())
    }

    /// Notes a verdict beside the Envoy's row. A policy that was taken ends an older refusal.
    ///
    /// # Errors
    /// When the database does not answer.
    pub async fn note_verdict(&self, verdict: &Verdict) -> Result<(), StoreError> {
        let (field, message) = verdict.refused.clone().unzip();
        sqlx::query(
            "update envoy set refused_revision = case when $3::text is null then null else $2 end,
               refused_field = $3, refused_message = $4, last_seen = now()
             where boot = $1 and coalesce(refused_revision, 0) <= $2",
        )
        .bind(verdict.boot.cast_signed())
        .bind(verdict.revision.cast_signed())
        .bind(field)
        .bind(message)
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

/// What has no column of its own.
fn standing_json(standing: &Standing) -> serde_json::Value {
    serde_json::json!({
        "era": standing.era,
        "records_waiting": standing.records_waiting,
        "records_dropped": standing.records_dropped,
        "traps": standing.traps,
        "clock_offset_ms": standing.clock_offset_ms,
        "overfull_buckets": standing.overfull_buckets,
        "vms": standing.vms,
        "requests_in_flight": standing.requests_in_flight,
    })
}
