//! What an Envoy is told, in which order.

use sluicegate_core::noun::{Owner, OwnerKind};
use sluicegate_core::proto::dataplane as wire;
use sluicegate_core::proto::dataplane::sync_up;
use sluicegate_core::seal;
use test_postgres::Postgres;
use tonic::Code;

use crate::envoy::{Control, Envoy, connect, soon};
use crate::fixture::Fixture;

#[tokio::test]
async fn a_new_envoy_gets_everything_then_marks() {
    let mut fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    fixture.create_key("a").await;
    let policy = fixture.set_policy(&[7; 100_000]).await;
    let sealed = hex::encode(control.keyring.seal(b"sk-upstream", "credential 1").unwrap());
    fixture
        .commit(
            "credentials",
            &format!(
                "insert into provider (name, dialect, base_url) values ('p', 'openai', 'https://p');
                 insert into credential (provider_id, name, source, sealed, revision) values (1, 'c', 'stored', '\\x{sealed}', 3)"
            ),
        )
        .await;

    let mut envoy = Envoy::new(1);
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.heard("mark") == 2).await;
    assert!(envoy.accepts("a") && !envoy.accepts("b"));
    assert_eq!(envoy.log[0].0, "welcome");
    assert_eq!(envoy.log[1].0, "blocked", "nothing is accepted before it");
    assert_eq!(envoy.heard("end"), 1);
    assert_eq!(envoy.buckets, 65_536);
    assert_eq!(envoy.policy_revision, policy);
    assert_eq!(envoy.policy.values().flatten().count(), 100_000);
    let sealed = &envoy.credentials[&1];
    let opened = seal::open(&control.seal_key, sealed.era, 1, sealed.revision, &sealed.sealed).unwrap();
    assert_eq!(opened.expose(), b"sk-upstream");
    assert_eq!(envoy.revision, fixture.store.clock().await.unwrap().revision);
}

#[tokio::test]
async fn a_commit_arrives_before_the_mark_that_confirms_it() {
    let mut fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    let mut envoy = Envoy::new(1);
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.complete).await;

    let created = fixture.create_key("a").await;
    envoy.until(&mut stream, |e| e.revision >= created).await;
    assert!(envoy.accepts("a"));
    let removed = fixture.remove_key("a").await;
    envoy.until(&mut stream, |e| e.revision >= removed).await;
    assert!(!envoy.accepts("a"));
    assert_eq!(envoy.heard("keys"), 2, "one message for each");
    let blocked = fixture.block_org().await;
    envoy.until(&mut stream, |e| e.revision >= blocked).await;
    assert_eq!(envoy.blocked, Some((blocked, vec![Owner { kind: OwnerKind::Org, id: 1 }])));
    assert_eq!(envoy.heard("keys"), 2, "a block sends no key");
}

#[tokio::test]
async fn who_comes_back_gets_what_changed_and_no_more() {
    let mut fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    fixture.create_many(1_000).await;
    let mut envoy = Envoy::new(1);
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.complete).await;
    drop(stream);

    let removed = fixture.remove_key("bulk-7").await;
    envoy.log.clear();
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.revision >= removed).await;
    assert!(!envoy.accepts("bulk-7"));
    assert_eq!((envoy.heard("end"), envoy.heard("keys")), (0, 1));
    assert!(envoy.log.iter().all(|(kind, size)| *kind != "keys" || *size < 200), "one bucket: {:?}", envoy.log);

    // A second subscriber of a boot that never was complete gets all.
    let mut other = Envoy { buckets: 4_096, ..Envoy::new(2) };
    let mut stream = other.connect(&control).await;
    other.until(&mut stream, |e| e.complete).await;
    assert_eq!((other.count(), other.buckets), (999, 4_096));
}

#[tokio::test]
async fn a_log_that_was_cut_means_a_resync_of_replicas_started_since() {
    let mut fixture = Fixture::new().await;
    let first = fixture.create_key("a").await;
    fixture.create_key("b").await;
    sqlx::raw_sql("update key_change set at = now() - interval '2 days'").execute(&mut fixture.sql).await.unwrap();
    fixture.store.maintain().await.unwrap();
    fixture.create_key("c").await;
    let control = Control::start(&fixture.store).await;
    let era = fixture.store.clock().await.unwrap().era;
    let mut envoy = Envoy { era, revision: first, complete: true, ..Envoy::new(1) };
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.heard("end") == 1).await;
    assert_eq!(envoy.count(), 3);
}

#[tokio::test]
async fn only_the_highest_epoch_lives() {
    let fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    let envoy = Envoy::new(1);
    let at = |epoch| wire::Hello { epoch, ..envoy.hello() };
    let first = connect(&control, at(5)).await.unwrap();
    let mut first = first;
    first.next().await.unwrap();
    let older = connect(&control, at(4)).await.unwrap();
    assert_eq!(older.end().await.code(), Code::Aborted);
    let mut newer = connect(&control, at(6)).await.unwrap();
    assert_eq!(first.end().await.code(), Code::Aborted);
    let other = wire::Hello { subscriber: 1, epoch: 1, ..envoy.hello() };
    let mut other = connect(&control, other).await.unwrap();
    other.next().await.unwrap();
    newer.next().await.unwrap();
}

#[tokio::test]
async fn who_is_not_one_of_us_is_refused() {
    let fixture = Fixture::new().await;
    let mut control = Control::start(&fixture.store).await;
    let envoy = Envoy::new(1);
    let refused = async |control: &Control, hello| match connect(control, hello).await {
        Ok(stream) => stream.end().await,
        Err(status) => status,
    };
    let old = wire::Hello { envoy_version: "1.37.0".into(), ..envoy.hello() };
    let status = refused(&control, old).await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("1.38.2"), "{status}");
    let nameless = wire::Hello { node: String::new(), ..envoy.hello() };
    assert_eq!(refused(&control, nameless).await.code(), Code::InvalidArgument);
    for token in ["sgn-nobody", "", "sk-sg-a-b"] {
        control.token = token.into();
        assert_eq!(refused(&control, envoy.hello()).await.code(), Code::Unauthenticated);
    }
}

#[tokio::test]
async fn a_revoked_token_ends_open_streams() {
    let fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    let mut envoy = Envoy::new(1);
    let mut sync = envoy.connect(&control).await;
    envoy.until(&mut sync, |e| e.complete).await;
    let mut write = fixture.store.begin("test", &control.keyring).await.unwrap();
    write.revoke_node_token("node").await.unwrap();
    write.commit().await.unwrap();
    assert_eq!(sync.end().await.code(), Code::Unauthenticated);
    assert_eq!(connect(&control, envoy.hello()).await.err().map(|s| s.code()), Some(Code::Unauthenticated));
}

/// Ready, key revision, refused revision and field, VMs.
type EnvoyRow = (bool, i64, Option<i64>, Option<String>, i32);

#[tokio::test]
async fn a_policy_waits_for_its_clusters_and_is_judged() {
    let mut fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    control.clusters.ready.send_replace(None);
    let policy = fixture.set_policy(&[1]).await;
    let mut envoy = Envoy::new(77);
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.heard("mark") == 1).await;
    assert_eq!(envoy.heard("policy"), 0);
    control.clusters.ready.send_replace(Some(policy));
    envoy.until(&mut stream, |e| e.policy_revision == policy).await;

    let verdict = wire::PolicyVerdict {
        era: envoy.era,
        revision: policy,
        accepted: false,
        field: "models[0].name".into(),
        message: "must not be empty".into(),
    };
    stream.say(sync_up::M::Verdict(verdict)).await;
    stream.say(sync_up::M::Standing(wire::Standing { vms: 3, ..envoy.standing() })).await;
    let row = async |sql: &mut sqlx::PgConnection| -> Option<EnvoyRow> {
        sqlx::query_as("select ready, key_revision, refused_revision, refused_field, (standing ->> 'vms')::int from envoy where boot = 77")
            .fetch_optional(sql)
            .await
            .unwrap()
    };
    let expected =
        (true, envoy.revision.cast_signed(), Some(policy.cast_signed()), Some("models[0].name".to_owned()), 3);
    soon(async {
        while row(&mut fixture.sql).await.as_ref() != Some(&expected) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_envoy_that_knows_a_higher_era_starts_a_new_one() {
    let mut fixture = Fixture::new().await;
    fixture.create_key("a").await;
    let control = Control::start(&fixture.store).await;
    let era = fixture.store.clock().await.unwrap().era + 5_000;
    let mut envoy = Envoy { era, revision: 100, complete: true, ..Envoy::new(1) };
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.heard("end") == 1).await;
    assert!(envoy.era > era);
    assert!(envoy.accepts("a"));
    let absurd = Envoy { era: u64::MAX, ..Envoy::new(2) };
    assert_eq!(absurd.connect(&control).await.end().await.code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_database_ends_streams_and_resyncs() {
    let mut postgres = Postgres::start().await;
    let mut fixture = Fixture::at(postgres.empty().await).await;
    fixture.create_key("a").await;
    let control = Control::start(&fixture.store).await;
    let mut envoy = Envoy::new(1);
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.complete).await;
    let era = envoy.era;

    postgres.restart().await;
    assert_eq!(stream.end().await.code(), Code::Unavailable);
    envoy.log.clear();
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.heard("end") == 1).await;
    assert!(envoy.era > era && envoy.accepts("a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_come_in_small_messages_and_go_with_one() {
    let mut fixture = Fixture::new().await;
    let control = Control::start(&fixture.store).await;
    fixture.create_many(100_000).await;
    let mut envoy = Envoy::new(1);
    let mut stream = envoy.connect(&control).await;
    envoy.until(&mut stream, |e| e.complete && e.count() == 100_000).await;
    let full = envoy.log.iter().filter(|(kind, size)| *kind == "keys" && *size > 60_000).count();
    assert!(full * 2 > envoy.heard("keys"), "few messages are small: {full} of {}", envoy.heard("keys"));

    envoy.log.clear();
    let blocked = fixture.block_org().await;
    envoy.until(&mut stream, |e| e.revision >= blocked).await;
    assert_eq!((envoy.heard("blocked"), envoy.heard("keys")), (1, 0));
}
