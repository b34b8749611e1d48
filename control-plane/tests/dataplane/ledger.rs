//! Each record once, and sums that equal the rows.

use sluicegate::store::{Inserted, LedgerRow, Recorded, Witness};
use sluicegate_core::proto::dataplane as wire;

use crate::fixture::Fixture;

/// Postgres time, near enough for the day a record belongs to.
pub fn now_ns() -> i64 {
    i64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

pub fn record(seq: u64) -> wire::Record {
    wire::Record {
        seq,
        admitted_ns: now_ns() - i64::try_from(seq % 3).unwrap() * 3_600_000_000_000,
        operation: vec![u8::try_from(seq % 256).unwrap(); 16].into(),
        attempt: 1,
        last: seq.is_multiple_of(2),
        org: 1,
        key: u32::try_from(seq % 5).unwrap(),
        requested_model: "gpt-4o".into(),
        model: 1,
        backend: 1,
        policy_revision: 1,
        usage: Some(wire::Usage { input: seq, cache_read: 2, output: 3, reasoning: 4, ..Default::default() }),
        source: if seq.is_multiple_of(4) { wire::Source::Estimated } else { wire::Source::Reported }.into(),
        cost_nano: (!seq.is_multiple_of(3)).then_some(7),
        status: 200,
        ended: wire::Ended::Complete.into(),
        total_us: 1000,
        gateway_us: 10,
        route: "chat.completions".into(),
        ..Default::default()
    }
}

fn recorded(seq: u64) -> Recorded {
    Recorded { node: "node".into(), boot: u64::MAX, vm: 9, record: record(seq) }
}

fn rows(seqs: impl IntoIterator<Item = u64>) -> Vec<LedgerRow> {
    seqs.into_iter().map(|seq| LedgerRow::check(&recorded(seq), Witness::Flow, now_ns()).unwrap()).collect()
}

/// How many rows there are, after checking that the hourly sums are exactly theirs.
pub async fn rows_that_add_up(fixture: &mut Fixture) -> i64 {
    let wrong: i64 = sqlx::query_scalar(
        "with rows as (
           select date_trunc('hour', admitted_at, 'UTC') as hour, coalesce(org_id, 0) o, coalesce(team_id, 0) t,
             coalesce(user_id, 0) u, coalesce(key_id, 0) k, coalesce(model_id, 0) m, coalesce(backend_id, 0) b,
             count(*) filter (where last), count(*), count(*) filter (where refusal is not null),
             count(*) filter (where source = 'estimated'), sum(input + cache_read + cache_write_5m + cache_write_1h + audio_in),
             sum(cache_read + cache_write_5m + cache_write_1h), sum(output + reasoning + audio_out), coalesce(sum(cost_nano), 0),
             count(*) filter (where cost_nano is null and source <> 'none')
           from usage group by 1, 2, 3, 4, 5, 6, 7),
         sums as (select * from usage_hourly)
         select count(*) from ((table rows except all table sums) union all (table sums except all table rows)) as d",
    )
    .fetch_one(&mut fixture.sql)
    .await
    .unwrap();
    assert_eq!(wrong, 0, "hourly sums that are not those of the rows");
    sqlx::query_scalar("select count(*) from usage").fetch_one(&mut fixture.sql).await.unwrap()
}

#[tokio::test]
async fn a_record_that_comes_again_is_booked_once() {
    let mut fixture = Fixture::new().await;
    fixture.store.maintain().await.unwrap();
    let insert = async |seqs: Vec<u64>| fixture.store.insert_usage(rows(seqs)).await.unwrap();
    assert_eq!(insert((0..100).collect()).await, Inserted { inserted: 100, duplicate: 0, rejected: 0 });
    assert_eq!(insert((50..150).collect()).await, Inserted { inserted: 50, duplicate: 50, rejected: 0 });
    assert_eq!(insert(vec![200, 200, 200]).await, Inserted { inserted: 1, duplicate: 2, rejected: 0 });
    assert_eq!(rows_that_add_up(&mut fixture).await, 151);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_insert_the_same_at_once_book_it_once() {
    let mut fixture = Fixture::new().await;
    let inserts = (0..8).map(|n| {
        let store = fixture.store.clone();
        let seqs: Vec<u64> = if n % 2 == 0 { (0..500).collect() } else { (0..500).rev().collect() };
        tokio::spawn(async move { store.insert_usage(rows(seqs)).await.unwrap() })
    });
    let done = futures::future::join_all(inserts).await;
    assert_eq!(done.into_iter().map(|d| d.unwrap().inserted).sum::<u64>(), 500);
    assert_eq!(rows_that_add_up(&mut fixture).await, 500);
}

#[tokio::test]
async fn one_row_the_database_refuses_does_not_keep_the_others_out() {
    let mut fixture = Fixture::new().await;
    sqlx::raw_sql("alter table usage add check (seq <> 13)").execute(&mut fixture.sql).await.unwrap();
    let done = fixture.store.insert_usage(rows(0..50)).await.unwrap();
    assert_eq!(done, Inserted { inserted: 49, duplicate: 0, rejected: 1 });
    assert_eq!(rows_that_add_up(&mut fixture).await, 49);
}

#[tokio::test]
async fn the_access_log_adds_only_what_is_missing() {
    let mut fixture = Fixture::new().await;
    fixture.store.insert_usage(rows(0..10)).await.unwrap();
    let mut log: Vec<Recorded> = (5..15).map(recorded).collect();
    log.push(Recorded { record: wire::Record { operation: vec![1].into(), ..record(99) }, ..recorded(99) });
    let done = fixture.store.reconcile_records(log).await.unwrap();
    assert_eq!((done.seen, done.already, done.added, done.rejected), (11, 5, 5, 1));
    let by_log: i64 = sqlx::query_scalar("select count(*) from usage where witness = 'log' and seq >= 10")
        .fetch_one(&mut fixture.sql)
        .await
        .unwrap();
    assert_eq!(by_log, 5);
    assert_eq!(rows_that_add_up(&mut fixture).await, 15);
}

#[tokio::test]
async fn maintenance_lays_out_days_and_cuts_the_log_without_holes() {
    let mut fixture = Fixture::new().await;
    for key in ["a", "b", "c"] {
        fixture.create_key(key).await;
    }
    // The middle change looks oldest: transactions begin in another order than they commit.
    sqlx::raw_sql("update key_change set at = now() - interval '25 hours' where revision = 2")
        .execute(&mut fixture.sql)
        .await
        .unwrap();
    let swept = fixture.store.maintain().await.unwrap();
    assert_eq!((swept.key_changes, swept.partitions), (2, 8));
    let left: Vec<i64> =
        sqlx::query_scalar("select revision from key_change").fetch_all(&mut fixture.sql).await.unwrap();
    assert_eq!(left, [3]);
    assert_eq!(fixture.store.maintain().await.unwrap().partitions, 0);
    fixture.store.insert_usage(rows([1])).await.unwrap();
    let table: String =
        sqlx::query_scalar("select tableoid::regclass::text from usage").fetch_one(&mut fixture.sql).await.unwrap();
    assert!(table.starts_with("usage_2"), "{table}");
}
