//! The whole protocol against its laws, with the product's code at both ends.
//!
//! A database and its history, two replicas that lag, streams (some of them zombies), VMs that trap between any two writes
//! and interrupt each other between any two calls, logs that are cut, restored databases. After every step every key is
//! looked up. A rule that is switched off, here or in the code, must be found: otherwise it is not needed, or not tested.
//! `SLUICEGATE_MODEL_RUNS` and `SLUICEGATE_MODEL_SEED` make it look longer and elsewhere.

mod fault;
mod laws;
mod steps;
mod store;
mod world;

use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};

use self::fault::Fault;
use self::steps::{Step, run, steps};
use self::world::Commit;
use super::rule::{self, Rule};

/// Random runs, the same each time. Returns the first run that breaks a law, made shorter by `shrink` tries at most.
fn explore(runs: u32, shrink: u32, fault: Option<Fault>) -> Option<(String, Vec<Step>)> {
    let mut runner = TestRunner::new(Config {
        cases: runs,
        failure_persistence: None,
        max_shrink_iters: shrink,
        rng_seed: RngSeed::Fixed(number("SLUICEGATE_MODEL_SEED", 0x51ce)),
        ..Config::default()
    });
    match runner.run(&steps(), |steps| run(&steps, fault).map_err(TestCaseError::fail)) {
        Ok(()) => None,
        Err(TestError::Fail(reason, steps)) => Some((reason.to_string(), steps)),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

#[test]
fn the_laws_hold() {
    let runs = number("SLUICEGATE_MODEL_RUNS", 300);
    let runs = u32::try_from(runs).unwrap();
    if let Some((reason, steps)) = explore(runs, 20_000, None) {
        panic!("{reason}, after {steps:#?}");
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

/// Without a rule a law breaks within some runs, and with it not in the same run.
fn assert_found(rule: Option<Rule>, fault: Option<Fault>) {
    let (reason, steps) = rule::without(rule, || explore(400, 0, fault)).expect("a run that breaks a law");
    assert_eq!(run(&steps, None), Ok(()), "it was not for this rule: {reason}");
}

macro_rules! found {
    ($($name:ident: $rule:expr, $fault:expr;)*) => { $(
        #[test]
        fn $name() {
            assert_found($rule, $fault);
        }
    )* };
}

found! {
    s2_counter_before_content: None, Some(Fault::CounterAfterContent);
    s3_a_bucket_loses_to_a_higher_stamp: Some(Rule::S3), None;
    s4_a_mark_after_its_keys: None, Some(Fault::MarkFirst);
    s5_a_cut_log_is_a_resync: None, Some(Fault::LogCutIgnored);
    s5_another_era_is_a_resync: None, Some(Fault::DeltaForAll);
    s6_late_empties_are_sent: None, Some(Fault::LateEmptiesSkipped);
    s6_the_floor_is_the_begin: None, Some(Fault::FloorAtEnd);
    s6_no_marks_in_a_resync: None, Some(Fault::MarksInResync);
    s7_under_the_floor_is_empty: Some(Rule::S7), None;
    s8_unknown_only_when_current: Some(Rule::S8), None;
    s10_the_list_before_the_keys: None, Some(Fault::BlockedLast);
    s10_the_list_as_a_whole: None, Some(Fault::PartsForWhole);
    s10_a_list_loses_to_a_higher_stamp: Some(Rule::S10Stamp), None;
    s11_profiles_before_keys: None, Some(Fault::ProfilesOnce);
}

/// What random runs find only after hundreds or thousands, on an Envoy that stream 0 of replica 0 has brought up to date.
fn assert_breaks(rule: Option<Rule>, fault: Option<Fault>, steps: &[Step]) {
    let warm = [Step::Open { replica: 0 }, Step::Pump { stream: 0 }];
    let steps = [&warm, steps].concat();
    assert_eq!(run(&steps, None), Ok(()));
    assert!(rule::without(rule, || run(&steps, fault)).is_err());
}

const fn put(key: usize, new_profile: bool) -> Step {
    Step::Commit(Commit::Put { key, new_profile })
}

const fn remove(key: usize) -> Step {
    Step::Commit(Commit::Remove { key })
}

/// By the bits: org 1 (keys 0 and 2), org 2 (keys 1 and 3), key 0.
const fn block(owners: u8) -> Step {
    Step::Commit(Commit::Block { owners })
}

#[test]
fn s8_head_before_the_bucket() {
    // The reader has the old bucket in its hand when the resync ends, and finds it under the floor.
    let steps = [
        put(3, false),
        Step::CatchUp { replica: 0, revisions: 1 },
        Step::CutLog { replica: 0 },
        Step::Open { replica: 0 },
        Step::Tick { stream: 1 },
        Step::Read { key: 0, calls: 1, stream: 1 },
    ];
    assert_breaks(None, Some(Fault::BucketBeforeHead), &steps);
}

#[test]
fn s8_a_list_as_new_as_the_bucket() {
    // Between the reads of head and bucket come the block of an org and a change of a key of its.
    let current = Step::Send { stream: 0, messages: 1, current: true };
    let steps = [block(1), put(0, true), current, Step::Read { key: 0, calls: 1, stream: 0 }];
    assert_breaks(Some(Rule::S8List), None, &steps);
}

#[test]
fn s10_leaving_owners_stay_blocked() {
    // A key of a blocked org is removed, then the org is free; the list comes before the bucket.
    let list = [Step::Send { stream: 0, messages: 1, current: true }, Step::Deliver { stream: 0, messages: 1 }];
    let blocked = [block(2), Step::CatchUp { replica: 0, revisions: 1 }, Step::Pump { stream: 0 }];
    let steps = [&blocked[..], &[remove(1), block(0)], &list].concat();
    assert_breaks(Some(Rule::S10Leaving), None, &steps);
}

#[test]
fn s10_a_stream_behind_the_list_ends() {
    // A key lived only while its org was blocked. A replica that knows neither end of it sends the key after another one
    // has sent the list without the org: that list never had it, so it is not leaving.
    let steps = [
        Step::Open { replica: 1 },
        Step::Pump { stream: 1 },
        block(2),
        put(3, false),
        Step::CatchUp { replica: 1, revisions: 2 },
        remove(3),
        block(0),
        Step::Send { stream: 0, messages: 1, current: true },
        Step::Deliver { stream: 0, messages: 1 },
        Step::Send { stream: 1, messages: 9, current: false },
        Step::Deliver { stream: 1, messages: 9 },
    ];
    assert_breaks(Some(Rule::S10Behind), None, &steps);
}

#[test]
fn s11_a_profile_by_its_id() {
    // Key 2 leaves a profile, whose place is given to a new one; that comes before key 2's bucket, and a VM reads.
    let steps = [
        put(2, true),
        Step::CatchUp { replica: 0, revisions: 1 },
        Step::Pump { stream: 0 },
        put(2, true),
        put(0, true),
        Step::Send { stream: 0, messages: 1, current: true },
        Step::Deliver { stream: 0, messages: 1 },
        Step::NewReader,
    ];
    assert_breaks(Some(Rule::S11), None, &steps);
}
