//! A database that is not provably the one it was begins a new era.

use sluicegate::store::{RaiseError, Store};
use test_postgres::Postgres;

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn the_era_rises_with_a_restart_and_with_nothing_else() {
    let mut postgres = Postgres::start().await;
    let fixture = Fixture::at(postgres.empty().await).await;
    let first = fixture.store.clock().await.unwrap();
    assert!(first.era > 1_600_000_000_000, "an era is Postgres milliseconds");
    let again = Store::connect(&fixture.url).await.unwrap();
    assert_eq!(again.clock().await.unwrap().era, first.era, "another replica is in the same era");

    postgres.restart().await;
    let clocks = futures::future::join_all([&fixture.store, &again, &fixture.store].map(Store::clock)).await;
    let eras: Vec<u64> = clocks.into_iter().map(|c| c.unwrap().era).collect();
    assert!(eras[0] > first.era);
    assert!(eras.iter().all(|era| *era == eras[0]), "all replicas agree on the new era");
}

#[tokio::test]
async fn a_counter_loaded_from_a_dump_is_a_new_era() {
    let mut fixture = Fixture::new().await;
    let before = fixture.store.clock().await.unwrap();
    sqlx::raw_sql("vacuum full revision").execute(&mut fixture.sql).await.unwrap();
    let after = Store::connect(&fixture.url).await.unwrap().clock().await.unwrap();
    assert!(after.era > before.era, "its storage is another file now");
    assert_eq!(after.revision, before.revision);
}

#[tokio::test]
async fn an_envoy_that_knows_a_higher_era_raises_it() {
    let fixture = Fixture::new().await;
    let era = fixture.store.clock().await.unwrap().era;
    assert_eq!(fixture.store.raise_era(era).await.unwrap(), era, "the same era raises nothing");
    assert_eq!(fixture.store.raise_era(era - 1).await.unwrap(), era);
    let raised = fixture.store.raise_era(era + 1_000_000).await.unwrap();
    assert_eq!(raised, era + 1_000_001);
    assert!(matches!(fixture.store.raise_era(u64::MAX).await, Err(RaiseError::Absurd(_))));
    assert_eq!(fixture.store.clock().await.unwrap().era, raised);
}
