//! Records are acknowledged when they are durable, and booked once.

use std::collections::HashSet;
use std::time::Duration;

use sluicegate_core::proto::dataplane as wire;
use test_postgres::Postgres;

use crate::envoy::{Control, Envoy, soon};
use crate::fixture::Fixture;
use crate::ledger::{record, rows_that_add_up};

#[tokio::test]
async fn what_is_acknowledged_is_in_the_ledger() {
    let mut fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    let (mut one, mut two) = (control.flow(1, 10).await, control.flow(1, 11).await);
    one.send((0..300).map(record).collect()).await;
    assert_eq!(one.acked().await, (0..300).collect());
    // The same again, from the same VM and from another: it is acknowledged again, and new rows are those of the other.
    one.send((200..310).map(record).collect()).await;
    assert_eq!(one.acked().await, (200..310).collect());
    two.send((0..5).map(record).collect()).await;
    assert_eq!(two.acked().await, (0..5).collect());
    assert_eq!(rows_that_add_up(&mut fixture).await, 315);
}

#[tokio::test]
async fn what_makes_no_sense_is_acknowledged_and_left_out() {
    let mut fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    let mut flow = control.flow(1, 10).await;
    let absurd = wire::Record { admitted_ns: i64::MAX, ..record(1) };
    flow.send(vec![absurd, record(2)]).await;
    assert_eq!(flow.acked().await, HashSet::from([1, 2]));
    let nonsense = wire::Record { org: u32::MAX, ..record(3) };
    flow.send(vec![nonsense]).await;
    assert_eq!(flow.acked().await, HashSet::from([3]));
    assert_eq!(rows_that_add_up(&mut fixture).await, 1);
}

#[tokio::test]
async fn what_the_database_does_not_take_is_not_acknowledged() {
    let mut fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    let mut flow = control.flow(1, 10).await;
    sqlx::raw_sql("alter table usage rename to usage_away").execute(&mut fixture.sql).await.unwrap();
    flow.send(vec![record(1)]).await;
    assert!(flow.is_silent(Duration::from_millis(500)).await);
    sqlx::raw_sql("alter table usage_away rename to usage").execute(&mut fixture.sql).await.unwrap();
    flow.send(vec![record(1)]).await;
    assert_eq!(flow.acked().await, HashSet::from([1]), "the stream still stands");
    assert_eq!(rows_that_add_up(&mut fixture).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_database_stops_marks_and_acks_and_loses_nothing() {
    let mut postgres = Postgres::start().await;
    let mut fixture = Fixture::at(postgres.empty().await).await;
    let control = Control::start(&fixture.store).await;
    let mut envoy = Envoy::new(1);
    let mut sync = envoy.connect(&control).await;
    let mut flow = control.flow(1, 10).await;
    envoy.until(&mut sync, |e| e.heard("mark") == 1).await;
    flow.send((0..10).map(record).collect()).await;
    assert_eq!(flow.acked().await.len(), 10);

    postgres.kill_9().await;
    flow.send((10..20).map(record).collect()).await;
    // Marks come every second while there is a database.
    let confirmed = envoy.confirmed_ns;
    let silence = tokio::time::timeout(Duration::from_millis(2_500), async {
        loop {
            let message = sync.next().await.unwrap();
            envoy.apply(message);
        }
    });
    assert!(silence.await.is_err(), "the stream stands");
    assert!(envoy.confirmed_ns - confirmed < 1_500_000_000, "at most the mark that was on its way");
    assert!(flow.is_silent(Duration::from_millis(10)).await);

    postgres.restart().await;
    let acked = soon(async {
        loop {
            // As the filter does: what is not acknowledged after a while is sent again.
            flow.send((10..20).map(record).collect()).await;
            if let Ok(acked) = tokio::time::timeout(Duration::from_secs(2), flow.acked()).await {
                return acked;
            }
        }
    })
    .await;
    assert_eq!(acked, (10..20).collect());
    sync.end().await;
    let mut sync = envoy.connect(&control).await;
    envoy.until(&mut sync, |e| e.heard("end") == 2 && e.log.last().unwrap().0 == "mark").await;
    fixture.reconnect().await;
    assert_eq!(rows_that_add_up(&mut fixture).await, 20);
}
