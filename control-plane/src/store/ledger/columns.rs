//! Rows turned into one array per column, and the statement that takes them.

use chrono::{DateTime, NaiveDate, Utc};
use sqlx::Postgres;
use sqlx::postgres::PgArguments;
use sqlx::query::QueryScalar;
use uuid::Uuid;

use super::LedgerRow;

/// Inserts the rows that are not there, adds exactly those to `usage_hourly`, returns how many there were.
pub(super) const INSERT: &str = "
    with incoming as (
      select * from unnest(
        $1::date[], $2::bigint[], $3::bigint[], $4::bigint[], $5::uuid[], $6::integer[],
        $7::boolean[], $8::timestamptz[], $9::text[], $10::integer[], $11::integer[], $12::integer[],
        $13::integer[], $14::text[], $15::text[], $16::text[], $17::integer[], $18::integer[],
        $19::integer[], $20::bigint[], $21::boolean[], $22::bigint[], $23::bigint[], $24::bigint[],
        $25::bigint[], $26::bigint[], $27::bigint[], $28::bigint[], $29::bigint[], $30::bigint[],
        $31::text[], $32::bigint[], $33::integer[], $34::integer[], $35::text[], $36::text[],
        $37::integer[], $38::integer[], $39::integer[], $40::text[]
      ) as t(
        day, boot, vm, seq, operation, attempt, last, admitted_at, node,
        org_id, team_id, user_id, key_id, session, route, requested_model, model_id, backend_id,
        credential_id, policy_revision, stream, input, cache_read, cache_write_5m, cache_write_1h, output, reasoning,
        audio_in, audio_out, images, source, cost_nano, status, upstream_status, refusal, ended,
        first_token_us, total_us, gateway_us, witness
      )
    ),
    inserted as (
      insert into usage (
        day, boot, vm, seq, operation, attempt, last, admitted_at, node,
        org_id, team_id, user_id, key_id, session, route, requested_model, model_id, backend_id,
        credential_id, policy_revision, stream, input, cache_read, cache_write_5m, cache_write_1h, output, reasoning,
        audio_in, audio_out, images, source, cost_nano, status, upstream_status, refusal, ended,
        first_token_us, total_us, gateway_us, witness
      )
      select * from incoming order by day, boot, vm, seq
      on conflict do nothing returning *
    ),
    rolled as (
      insert into usage_hourly as h (
        hour, org_id, team_id, user_id, key_id, model_id, backend_id,
        requests, attempts, refused, estimated, input, cached, output, cost_nano, unpriced
      )
      select date_trunc('hour', admitted_at, 'UTC'), coalesce(org_id, 0), coalesce(team_id, 0), coalesce(user_id, 0),
        coalesce(key_id, 0), coalesce(model_id, 0), coalesce(backend_id, 0),
        count(*) filter (where last), count(*), count(*) filter (where refusal is not null),
        count(*) filter (where source = 'estimated'),
        sum(input + cache_read + cache_write_5m + cache_write_1h + audio_in),
        sum(cache_read + cache_write_5m + cache_write_1h), sum(output + reasoning + audio_out),
        coalesce(sum(cost_nano), 0), count(*) filter (where cost_nano is null and source <> 'none')
      from inserted
      group by 1, 2, 3, 4, 5, 6, 7 order by 1, 2, 3, 4, 5, 6, 7
      on conflict (hour, org_id, team_id, user_id, key_id, model_id, backend_id) do update set
        requests = h.requests + excluded.requests, attempts = h.attempts + excluded.attempts,
        refused = h.refused + excluded.refused, estimated = h.estimated + excluded.estimated,
        input = h.input + excluded.input, cached = h.cached + excluded.cached, output = h.output + excluded.output,
        cost_nano = h.cost_nano + excluded.cost_nano, unpriced = h.unpriced + excluded.unpriced
    )
    select count(*) from inserted";

/// One array per column, in the order of [`INSERT`]'s parameters.
#[derive(Debug, Default)]
pub(super) struct Columns<'a> {
    day: Vec<NaiveDate>,
    boot: Vec<i64>,
    vm: Vec<i64>,
    seq: Vec<i64>,
    operation: Vec<Uuid>,
    attempt: Vec<i32>,
    last: Vec<bool>,
    admitted_at: Vec<DateTime<Utc>>,
    node: Vec<&'a str>,
    org: Vec<Option<i32>>,
    team: Vec<Option<i32>>,
    user: Vec<Option<i32>>,
    key: Vec<Option<i32>>,
    session: Vec<Option<&'a str>>,
    route: Vec<&'a str>,
    requested_model: Vec<&'a str>,
    model: Vec<Option<i32>>,
    backend: Vec<Option<i32>>,
    credential: Vec<Option<i32>>,
    policy_revision: Vec<i64>,
    stream: Vec<bool>,
    counts: [Vec<i64>; 9],
    source: Vec<&'a str>,
    cost_nano: Vec<Option<i64>>,
    status: Vec<i32>,
    upstream_status: Vec<Option<i32>>,
    refusal: Vec<Option<&'a str>>,
    ended: Vec<&'a str>,
    first_token_us: Vec<Option<i32>>,
    total_us: Vec<i32>,
    gateway_us: Vec<i32>,
    witness: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    pub(super) fn from_rows(rows: &'a [LedgerRow]) -> Self {
        let mut columns = Self::default();
        for row in rows {
            columns.push(row);
        }
        columns
    }

    fn push(&mut self, row: &'a LedgerRow) {
        self.day.push(row.day);
        self.boot.push(row.boot);
        self.vm.push(row.vm);
        self.seq.push(row.seq);
        self.operation.push(row.operation);
        self.attempt.push(row.attempt);
        self.last.push(row.last);
        self.admitted_at.push(row.admitted_at);
        self.node.push(&row.node);
        self.org.push(row.org);
        self.team.push(row.team);
        self.user.push(row.user);
        self.key.push(row.key);
        self.session.push(row.session.as_deref());
        self.route.push(&row.route);
        self.requested_model.push(&row.requested_model);
        self.model.push(row.model);
        self.backend.push(row.backend);
        self.credential.push(row.credential);
        self.policy_revision.push(row.policy_revision);
        self.stream.push(row.stream);
        for (column, count) in self.counts.iter_mut().zip(row.counts) {
            column.push(count);
        }
        self.source.push(row.source);
        self.cost_nano.push(row.cost_nano);
        self.status.push(row.status);
        self.upstream_status.push(row.upstream_status);
        self.refusal.push(row.refusal.as_deref());
        self.ended.push(row.ended);
        self.first_token_us.push(row.first_token_us);
        self.total_us.push(row.total_us);
        self.gateway_us.push(row.gateway_us);
        self.witness.push(row.witness);
    }

    pub(super) fn bind<T>(
        self,
        query: QueryScalar<'a, Postgres, T, PgArguments>,
    ) -> QueryScalar<'a, Postgres, T, PgArguments> {
        let mut query = query
            .bind(self.day)
            .bind(self.boot)
            .bind(self.vm)
            .bind(self.seq)
            .bind(self.operation)
            .bind(self.attempt)
            .bind(self.last)
            .bind(self.admitted_at)
            .bind(self.node)
            .bind(self.org)
            .bind(self.team)
            .bind(self.user)
            .bind(self.key)
            .bind(self.session)
            .bind(self.route)
            .bind(self.requested_model)
            .bind(self.model)
            .bind(self.backend)
            .bind(self.credential)
            .bind(self.policy_revision)
            .bind(self.stream);
        for counts in self.counts {
            query = query.bind(counts);
        }
        query
            .bind(self.source)
            .bind(self.cost_nano)
            .bind(self.status)
            .bind(self.upstream_status)
            .bind(self.refusal)
            .bind(self.ended)
            .bind(self.first_token_us)
            .bind(self.total_us)
            .bind(self.gateway_us)
            .bind(self.witness)
    }
}
