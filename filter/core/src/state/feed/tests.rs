use std::iter;

use super::*;
use crate::noun::OwnerKind;
use crate::state::reference::{Database, key};

const ERA: u64 = 7;
const BUCKETS: u32 = 16;

fn hello(key_revision: u64) -> HelloFacts {
    HelloFacts { era: ERA, key_revision, complete: true, buckets: BUCKETS, profiles: 64 }
}

fn cold() -> HelloFacts {
    HelloFacts { era: 0, key_revision: 0, complete: false, ..hello(0) }
}

/// A key of bucket `bucket` of [`BUCKETS`].
fn key_of(bucket: u32, n: u32) -> KeyRecord {
    key(bucket << 28, n)
}

fn three_keys() -> Database {
    let mut db = Database::new(ERA);
    for bucket in [1, 4, 9] {
        db.put(key_of(bucket, bucket));
    }
    db
}

fn send(feed: &mut Feed, db: &Database) -> Option<M> {
    match feed.next(db) {
        Next::Send(down) => down.m,
        Next::Idle => None,
        Next::NewEra => panic!("a new era"),
    }
}

fn drain(feed: &mut Feed, db: &Database) -> Vec<M> {
    iter::from_fn(|| send(feed, db)).collect()
}

/// What a message is, buckets as (index, revision, records).
fn tell(m: &M) -> String {
    match m {
        M::Blocked(b) => format!("blocked@{} {}/{} {}", b.revision, b.index, b.count, b.owners.len()),
        M::Profiles(p) => format!("profiles {:?}", p.profiles.iter().map(|p| p.id).collect::<Vec<_>>()),
        M::Keys(k) => {
            let bucket = |b: &Bucket| format!(" {}@{}x{}", b.index, b.revision, b.records.len() / 48);
            format!("keys{}", k.buckets.iter().map(bucket).collect::<String>())
        }
        M::Mark(m) => format!("mark {}-{} at {}", m.from, m.to, m.now_unix_ns),
        M::ResyncEnd(e) => format!("end {}-{} at {}", e.floor, e.to, e.now_unix_ns),
        other => format!("{other:?}"),
    }
}

fn told(feed: &mut Feed, db: &Database) -> Vec<String> {
    drain(feed, db).iter().map(tell).collect()
}

#[test]
fn a_caught_up_envoy_gets_what_changed_and_contiguous_marks() {
    let mut db = three_keys();
    db.block([Owner { kind: OwnerKind::Org, id: 5 }]);
    db.remove(&key_of(4, 4).hash);
    let mut feed = Feed::new(hello(3));
    assert_eq!(told(&mut feed, &db), ["blocked@4 0/1 1", "keys 4@5x0"]);
    feed.tick(db.reading(100));
    assert_eq!(told(&mut feed, &db), ["mark 3-5 at 100"]);
    feed.tick(db.reading(200));
    assert_eq!(told(&mut feed, &db), ["mark 5-5 at 200"]);
    db.put(key_of(9, 10));
    db.put(key_of(1, 11));
    assert_eq!(told(&mut feed, &db), ["profiles [1]", "keys 1@7x2 9@7x2"]);
    feed.tick(db.reading(300));
    assert_eq!(told(&mut feed, &db), ["mark 5-7 at 300"]);
}

#[test]
fn a_cold_envoy_gets_every_occupied_bucket_and_an_end_for_a_mark() {
    let mut db = three_keys();
    let mut feed = Feed::new(cold());
    feed.tick(db.reading(100));
    assert_eq!(told(&mut feed, &db), ["blocked@0 0/1 0", "profiles [1]", "keys 1@3x1 4@3x1 9@3x1", "end 3-3 at 100"]);
    db.disable(&key_of(4, 4).hash);
    feed.tick(db.reading(200));
    assert_eq!(told(&mut feed, &db), ["keys 4@4x1", "mark 3-4 at 200"]);
}

#[test]
fn what_changes_during_a_resync_goes_first_even_if_it_became_empty() {
    let mut db = Database::new(ERA);
    // Two buckets of 1,000 records do not fit into one message.
    for bucket in [1, 4, 9] {
        for n in 0..1_000 {
            db.put(key_of(bucket, n));
        }
    }
    let mut feed = Feed::new(cold());
    feed.tick(db.reading(100));
    let mut next = |db: &Database| send(&mut feed, db).map(|m| tell(&m)).unwrap_or_default();
    assert_eq!(next(&db), "blocked@0 0/1 0");
    assert_eq!(next(&db), "profiles [1]");
    assert_eq!(next(&db), "keys 1@3000x1000");
    for n in 0..1_000 {
        db.remove(&key_of(1, n).hash);
    }
    db.put(key_of(2, 7));
    assert_eq!(next(&db), "keys 1@4001x0 2@4001x1");
    assert_eq!(next(&db), "keys 2@4001x1 4@4001x1000");
    assert_eq!(next(&db), "keys 9@4001x1000");
    assert_eq!(next(&db), "end 3000-4001 at 100");
    assert_eq!(next(&db), "");
}

#[test]
fn who_lost_the_thread_is_resynced() {
    let mut db = three_keys();
    db.cut_log();
    db.put(key_of(2, 2));
    let resync = ["blocked@0 0/1 0", "profiles [1]", "keys 1@4x1 2@4x1 4@4x1 9@4x1"];
    assert_eq!(told(&mut Feed::new(hello(3)), &db), ["blocked@0 0/1 0", "profiles [1]", "keys 2@4x1"]);
    assert_eq!(told(&mut Feed::new(hello(2)), &db), resync, "older than the log");
    assert_eq!(told(&mut Feed::new(HelloFacts { era: ERA - 1, ..hello(4) }), &db), resync, "another era");
    assert_eq!(told(&mut Feed::new(HelloFacts { complete: false, ..hello(4) }), &db), resync, "never complete");

    let mut feed = Feed::new(hello(4));
    assert_eq!(told(&mut feed, &db), ["blocked@0 0/1 0"]);
    assert!(!feed.resyncing());
    db.put(key_of(3, 3));
    db.cut_log();
    assert_eq!(told(&mut feed, &db)[1..], ["keys 1@5x1 2@5x1 3@5x1 4@5x1 9@5x1"], "slower than the log");
    assert!(feed.resyncing());
    feed.tick(db.reading(100));
    assert_eq!(told(&mut feed, &db), ["end 5-5 at 100"]);
}

#[test]
fn a_view_behind_the_envoy_says_nothing() {
    let db = three_keys();
    for ahead in [hello(4), HelloFacts { complete: false, ..hello(4) }, HelloFacts { era: ERA + 1, ..hello(1) }] {
        let mut feed = Feed::new(ahead);
        feed.tick(db.reading(100));
        assert_eq!(feed.next(&db), Next::Idle, "{ahead:?}");
    }
}

#[test]
fn a_view_that_went_back_says_nothing() {
    let mut db = three_keys();
    let mut feed = Feed::new(hello(3));
    let old = db.clone();
    db.put(key_of(2, 2));
    drain(&mut feed, &db);
    feed.tick(old.reading(100));
    assert_eq!(feed.next(&old), Next::Idle);
}

#[test]
fn a_restored_database_ends_the_stream() {
    let mut db = three_keys();
    let backup = db.clone();
    let mut feed = Feed::new(hello(3));
    drain(&mut feed, &db);
    db.restore(&backup);
    assert_eq!(feed.next(&db), Next::NewEra);
}

#[test]
fn a_mark_waits_for_a_view_as_new_as_the_clock() {
    let mut db = three_keys();
    let mut feed = Feed::new(hello(3));
    drain(&mut feed, &db);
    let old = db.clone();
    db.remove(&key_of(1, 1).hash);
    feed.tick(db.reading(100));
    assert_eq!(feed.next(&old), Next::Idle);
    assert_eq!(told(&mut feed, &db), ["keys 1@4x0", "mark 3-4 at 100"]);
}

#[test]
fn a_changed_blocked_list_goes_before_the_keys_that_changed_with_it() {
    let mut db = three_keys();
    let mut feed = Feed::new(hello(3));
    drain(&mut feed, &db);
    db.block([Owner { kind: OwnerKind::Org, id: 5 }]);
    db.put(key_of(1, 2));
    assert_eq!(told(&mut feed, &db), ["blocked@4 0/1 1", "profiles [1]", "keys 1@5x2"]);
    db.block([]);
    assert_eq!(told(&mut feed, &db), ["blocked@6 0/1 0"]);
}

#[test]
fn a_list_that_changes_between_its_parts_begins_anew() {
    let mut db = three_keys();
    let owners = |count| (1..=count).map(|id| Owner { kind: OwnerKind::User, id: u32::MAX - id });
    db.block(owners(13_000));
    let mut feed = Feed::new(hello(3));
    let mut next = |db: &Database| send(&mut feed, db).map(|m| tell(&m)).unwrap_or_default();
    assert_eq!(next(&db), "blocked@4 0/3 6000");
    db.block(owners(12_001));
    assert_eq!(next(&db), "blocked@5 0/3 6000");
    assert_eq!(next(&db), "blocked@5 1/3 6000");
    assert_eq!(next(&db), "blocked@5 2/3 1");
    assert_eq!(next(&db), "");
}

#[test]
fn profiles_go_once_until_their_place_is_given_away() {
    let mut db = three_keys();
    db.profiles.extend([(2, Bytes::new()), (66, Bytes::new())]);
    let mut feed = Feed::new(hello(3));
    let mut put = |bucket, profile| {
        db.put(KeyRecord { profile, ..key_of(bucket, 1) });
        let mut messages = told(&mut feed, &db);
        messages.retain(|m| m.starts_with("profiles"));
        messages.concat()
    };
    assert_eq!(put(1, 2), "profiles [2]");
    assert_eq!(put(2, 2), "");
    assert_eq!(put(2, 66), "profiles [66]");
    assert_eq!(put(2, 2), "profiles [2]");
    assert_eq!(put(3, 0), "", "no profile");
    assert_eq!(put(3, 99), "", "a profile that is gone");
}

#[test]
fn no_message_is_over_64_kb_but_a_bucket_or_profile_that_is() {
    let mut db = Database::new(ERA);
    for n in 0..4_000u32 {
        let body = Bytes::from(vec![0; if n == 1_234 { 70_000 } else { 400 }]);
        db.profiles.insert(n + 1, body);
        db.put(KeyRecord { profile: n + 1, ..key(n.wrapping_mul(0x9e37_79b9), n) });
    }
    for n in 0..1_500 {
        db.put(key(5, n));
    }
    db.block((1..20_000).map(|id| Owner { kind: OwnerKind::Key, id: u32::MAX - id }));
    let mut feed = Feed::new(HelloFacts { buckets: 1 << 16, profiles: 1 << 16, ..cold() });
    feed.tick(db.reading(i64::MAX));
    let (mut buckets, mut profiles, mut owners, mut messages) = (0, 0, 0, 0);
    for m in drain(&mut feed, &db) {
        let alone = match &m {
            M::Keys(keys) => {
                buckets += keys.buckets.len();
                keys.buckets.len() == 1
            }
            M::Profiles(p) => {
                profiles += p.profiles.len();
                p.profiles.len() == 1
            }
            M::Blocked(b) => {
                owners += b.owners.len();
                false
            }
            _ => false,
        };
        messages += 1;
        let size = SyncDown { m: Some(m) }.encoded_len();
        assert!(size <= MAX_MESSAGE_BYTES || alone, "{size} bytes");
    }
    let occupied = db.keys.keys().map(|hash| super::super::record::bucket_of(hash, 1 << 16)).collect::<BTreeSet<_>>();
    assert_eq!((buckets, profiles, owners), (occupied.len(), 4_000, 19_999));
    // 270 KB of keys, 1.7 MB of profiles, 200 KB of owners: few are small.
    assert!((35..70).contains(&messages), "{messages} messages");
}
