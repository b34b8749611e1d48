//! What the Admin API shows of usage, Envoys and the audit log.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use sqlx::types::Uuid;
use utoipa::{IntoParams, ToSchema};

use super::{Store, StoreError};

/// Which usage. All conditions hold at once.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UsageFilter {
    /// Admitted at or after; a date is its midnight in UTC.
    #[serde(default, deserialize_with = "super::time::optional")]
    pub from: Option<DateTime<Utc>>,
    /// Admitted before; a date is its midnight in UTC.
    #[serde(default, deserialize_with = "super::time::optional")]
    pub to: Option<DateTime<Utc>>,
    #[serde(default, deserialize_with = "super::number::optional")]
    pub org: Option<i32>,
    #[serde(default, deserialize_with = "super::number::optional")]
    pub team: Option<i32>,
    #[serde(default, deserialize_with = "super::number::optional")]
    pub user: Option<i32>,
    #[serde(default, deserialize_with = "super::number::optional")]
    pub key: Option<i32>,
    #[serde(default, deserialize_with = "super::number::optional")]
    pub model: Option<i32>,
    /// At most so many rows, the newest first; 100 where absent, 1000 at most.
    #[serde(default, deserialize_with = "super::number::optional")]
    pub limit: Option<u32>,
    /// Of the summary: what a row stands for.
    pub by: Option<SummaryBy>,
}

/// One attempt, or one refusal. Names are those of today; of what is deleted, the last one, as `ci (deleted 3)`.
#[derive(Clone, Debug, Serialize, sqlx::FromRow, ToSchema)]
pub struct UsageRow {
    /// The request id; all attempts of one request share it.
    #[schema(value_type = String)]
    pub operation: Uuid,
    pub attempt: i32,
    pub last: bool,
    pub admitted_at: DateTime<Utc>,
    pub node: String,
    pub org: Option<String>,
    pub team: Option<String>,
    pub user: Option<String>,
    /// The public part of the key.
    pub key_id: Option<String>,
    pub key: Option<String>,
    pub session: Option<String>,
    pub route: String,
    pub requested_model: String,
    pub model: Option<String>,
    /// `<provider>/<model>`
    pub backend: Option<String>,
    pub credential: Option<String>,
    pub policy_revision: i64,
    pub stream: bool,
    pub input: i64,
    pub cache_read: i64,
    pub cache_write_5m: i64,
    pub cache_write_1h: i64,
    pub output: i64,
    pub reasoning: i64,
    pub audio_in: i64,
    pub audio_out: i64,
    pub images: i64,
    /// `none`, `reported` or `estimated`
    pub source: String,
    /// Nano-dollars; null: unpriced.
    pub cost_nano: Option<i64>,
    /// What the client got; 0 where it left before.
    pub status: i32,
    pub upstream_status: Option<i32>,
    pub refusal: Option<String>,
    pub ended: String,
    pub first_token_us: Option<i32>,
    pub total_us: i32,
    /// Of it, what the gateway spent itself.
    pub gateway_us: i32,
    /// Who brought it first: `flow` or `log`.
    pub witness: String,
}

/// What a row of a summary stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SummaryBy {
    Hour,
    #[default]
    Day,
    Org,
    Team,
    User,
    Key,
    Model,
}

/// Sums over attempts.
#[derive(Clone, Debug, Serialize, sqlx::FromRow, ToSchema)]
pub struct SummaryRow {
    /// The hour or day it begins at (UTC), or a name: `<org>/<name>` of a team, user or key. `-` where there is none,
    /// As `ci (deleted 3)`, with its id, where it is gone.
    pub what: String,
    pub requests: i64,
    pub attempts: i64,
    pub refused: i64,
    /// Attempts whose usage the provider did not report.
    pub estimated: i64,
    pub input: i64,
    /// Of the input, read from or written to a cache.
    pub cached: i64,
    pub output: i64,
    pub cost_nano: i64,
    /// Attempts without a price; not in the cost.
    pub unpriced: i64,
}

/// An Envoy process that was seen.
#[derive(Clone, Debug, Serialize, sqlx::FromRow, ToSchema)]
pub struct EnvoyRow {
    pub node: String,
    /// Random, one per process, in hex.
    pub boot: String,
    pub group: String,
    pub filter_version: String,
    pub envoy_version: String,
    /// It had complete state in this boot.
    pub ready: bool,
    /// The least policy that any of its VMs works by.
    pub policy_revision: i64,
    pub key_revision: i64,
    pub blocked_revision: i64,
    /// The last policy it refused, and why.
    pub refused_revision: Option<i64>,
    pub refused_field: Option<String>,
    pub refused_message: Option<String>,
    #[schema(value_type = Object)]
    pub standing: serde_json::Value,
    pub first_seen: DateTime<Utc>,
    pub last_seen: DateTime<Utc>,
    /// It reports every five seconds and did so in the last fifteen.
    pub live: bool,
    /// Another process under the same node id lives beside it: `--service-node` must be unique.
    pub clash: bool,
}

/// Who changed what, and when.
#[derive(Clone, Debug, Serialize, sqlx::FromRow, ToSchema)]
pub struct AuditEntry {
    pub id: i64,
    pub at: DateTime<Utc>,
    /// The name of the admin token.
    pub actor: String,
    pub action: String,
    pub kind: String,
    pub object: String,
    pub revision: i64,
    /// Of a creation what was declared, of an update what each field was and is.
    #[schema(value_type = Object)]
    pub detail: serde_json::Value,
}

const USAGE: &str = "select u.operation, u.attempt, u.last, u.admitted_at, u.node,
        coalesce(o.name, former('org', u.org_id)) as org, coalesce(t.name, former('team', u.team_id)) as team,
        coalesce(a.name, former('app_user', u.user_id)) as user, k.public_id as key_id,
        coalesce(k.name, former('api_key', u.key_id)) as key, u.session, u.route, u.requested_model,
        coalesce(m.name, former('model', u.model_id)) as model,
        coalesce(p.name || '/' || b.model, u.backend_id || ' (deleted)') as backend,
        coalesce(c.name, former('credential', u.credential_id)) as credential, u.policy_revision, u.stream, u.input, u.cache_read,
        u.cache_write_5m, u.cache_write_1h, u.output, u.reasoning, u.audio_in, u.audio_out, u.images, u.source,
        u.cost_nano, u.status, u.upstream_status, u.refusal, u.ended, u.first_token_us, u.total_us, u.gateway_us,
        u.witness
    from usage u
    left join org o on o.id = u.org_id left join team t on t.id = u.team_id left join app_user a on a.id = u.user_id
    left join api_key k on k.id = u.key_id left join model m on m.id = u.model_id
    left join backend b on b.id = u.backend_id left join provider p on p.id = b.provider_id
    left join credential c on c.id = u.credential_id
    where ($1::uuid is null or u.operation = $1)
      and ($2::timestamptz is null or (u.admitted_at >= $2 and u.day >= ($2 at time zone 'utc')::date))
      and ($3::timestamptz is null or (u.admitted_at < $3 and u.day <= ($3 at time zone 'utc')::date))
      and ($4::int is null or u.org_id = $4) and ($5::int is null or u.team_id = $5)
      and ($6::int is null or u.user_id = $6) and ($7::int is null or u.key_id = $7)
      and ($8::int is null or u.model_id = $8)
    order by u.admitted_at desc, u.operation, u.attempt limit $9";

/// The sums of `usage_hourly` by what `$what` is.
macro_rules! summary {
    ($($what:literal),+) => {
        concat!(
            "select ", $($what,)+ " as what, sum(h.requests)::bigint as requests, sum(h.attempts)::bigint as attempts,
                sum(h.refused)::bigint as refused, sum(h.estimated)::bigint as estimated, sum(h.input)::bigint as input,
                sum(h.cached)::bigint as cached, sum(h.output)::bigint as output, sum(h.cost_nano)::bigint as cost_nano,
                sum(h.unpriced)::bigint as unpriced
            from usage_hourly h
            left join org o on o.id = h.org_id left join team t on t.id = h.team_id
            left join app_user a on a.id = h.user_id left join api_key k on k.id = h.key_id
            left join model m on m.id = h.model_id
            where ($1::timestamptz is null or h.hour >= date_trunc('hour', $1)) and ($2::timestamptz is null or h.hour < $2)
              and ($3::int is null or h.org_id = $3) and ($4::int is null or h.team_id = $4)
              and ($5::int is null or h.user_id = $5) and ($6::int is null or h.key_id = $6)
              and ($7::int is null or h.model_id = $7)
            group by 1 order by 1 desc limit $8"
        )
    };
}

/// The sums by a noun: its name while it is there.
macro_rules! named {
    ($id:literal, $name:literal, $kind:literal) => {
        summary!("case when ", $id, " = 0 then '-' else coalesce(", $name, ", former('", $kind, "', ", $id, ")) end")
    };
}

impl Store {
    /// Attempts, the newest first, at most `limit`.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn usage(&self, filter: &UsageFilter, limit: u32) -> Result<Vec<UsageRow>, StoreError> {
        self.usage_rows(None, filter, limit).await
    }

    /// All attempts of one request, the first one first.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn operation(&self, operation: Uuid) -> Result<Vec<UsageRow>, StoreError> {
        let mut rows = self.usage_rows(Some(operation), &UsageFilter::default(), 1000).await?;
        rows.sort_by_key(|row| row.attempt);
        Ok(rows)
    }

    async fn usage_rows(
        &self,
        operation: Option<Uuid>,
        filter: &UsageFilter,
        limit: u32,
    ) -> Result<Vec<UsageRow>, StoreError> {
        Ok(sqlx::query_as(USAGE)
            .bind(operation)
            .bind(filter.from)
            .bind(filter.to)
            .bind(filter.org)
            .bind(filter.team)
            .bind(filter.user)
            .bind(filter.key)
            .bind(filter.model)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await?)
    }

    /// Sums by hour, day or a noun, of whole hours; at most `limit` of them.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn usage_summary(&self, filter: &UsageFilter, limit: u32) -> Result<Vec<SummaryRow>, StoreError> {
        let sql = match filter.by.unwrap_or_default() {
            SummaryBy::Hour => summary!("to_char(h.hour at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:00:00\"Z\"')"),
            SummaryBy::Day => summary!("to_char(h.hour at time zone 'utc', 'YYYY-MM-DD')"),
            SummaryBy::Org => named!("h.org_id", "o.name", "org"),
            SummaryBy::Team => named!("h.team_id", "o.name || '/' || t.name", "team"),
            SummaryBy::User => named!("h.user_id", "o.name || '/' || a.name", "app_user"),
            SummaryBy::Key => named!("h.key_id", "o.name || '/' || k.name", "api_key"),
            SummaryBy::Model => named!("h.model_id", "m.name", "model"),
        };
        Ok(sqlx::query_as(sql)
            .bind(filter.from)
            .bind(filter.to)
            .bind(filter.org)
            .bind(filter.team)
            .bind(filter.user)
            .bind(filter.key)
            .bind(filter.model)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await?)
    }

    /// Envoy processes, those seen last first.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn envoys(&self, limit: u32) -> Result<Vec<EnvoyRow>, StoreError> {
        Ok(sqlx::query_as(
            "select e.node, to_hex(e.boot) as boot, g.name as group, e.filter_version, e.envoy_version, e.ready,
                    e.policy_revision, e.key_revision, e.blocked_revision, e.refused_revision, e.refused_field,
                    e.refused_message, e.standing, e.first_seen, e.last_seen,
                    e.last_seen > now() - interval '15 seconds' as live,
                    -- One that was started again is not beside its former self: that has not reported since.
                    exists (select from envoy o where o.node = e.node and o.boot <> e.boot
                        and least(e.last_seen, o.last_seen) > now() - interval '15 seconds'
                        and least(e.last_seen, o.last_seen) >= greatest(e.first_seen, o.first_seen)) as clash
             from envoy e join envoy_group g on g.id = e.group_id order by e.last_seen desc limit $1",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?)
    }

    /// Audit rows, the newest first, those before the id `before` where it is given.
    ///
    /// # Errors
    /// When the database is away.
    pub async fn audit(&self, before: Option<i64>, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        Ok(sqlx::query_as(
            "select id, at, actor, action, kind, object, revision, detail from audit
             where $1::bigint is null or id < $1 order by id desc limit $2",
        )
        .bind(before)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await?)
    }
}
