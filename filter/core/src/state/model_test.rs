//! The whole protocol against its laws, with the product's code at both ends.
//!
//! A database and its history, two replicas that lag, streams (some of them zombies), VMs that trap between any two writes
//! and interrupt each other between any two calls, logs that are cut, restored databases. After every step every key is
//! looked up. A rule that is switched off, here or in the code, must be found: otherwise it is not needed, or not tested.

mod fault;
mod laws;
mod store;
mod world;

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestError, TestRunner};

use self::fault::Fault;
use self::laws::{Witness, check_settled};
use self::world::{Commit, KEYS, Stream, World, deliver};
use super::Reader;
use super::rule::{self, Rule};

const SECOND: u64 = 1_000_000_000;
const STEPS: usize = 100;

#[derive(Clone, Debug)]
enum Step {
    Commit(Commit),
    CatchUp {
        replica: usize,
        revisions: u64,
    },
    CutLog {
        replica: usize,
    },
    Restore {
        revisions: u64,
    },
    /// A reconnect, or a take-over while the old holder lives on.
    Open {
        replica: usize,
    },
    /// With everything under way.
    Close {
        stream: usize,
    },
    Tick {
        stream: usize,
    },
    /// `current`: its replica reads on to the end first, and the clock.
    Send {
        stream: usize,
        messages: usize,
        current: bool,
    },
    Deliver {
        stream: usize,
        messages: usize,
    },
    /// All of a stream, from an up-to-date replica or not.
    Pump {
        stream: usize,
    },
    Trap {
        stream: usize,
        writes: u32,
    },
    /// While one VM applies a message, another applies some.
    Interrupt {
        stream: usize,
        calls: u32,
        other: usize,
        messages: usize,
    },
    /// A lookup, while all that is under way to another VM comes there.
    Read {
        key: usize,
        calls: u32,
        stream: usize,
    },
    /// A VM begins, whose reader has seen nothing.
    NewReader,
    Keep {
        stream: usize,
    },
    Again,
    Wait {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (key, stream, replica) = (0..KEYS, 0..4usize, 0..2usize);
    let commit = prop_oneof![
        3 => (key.clone(), any::<bool>()).prop_map(|(key, new_profile)| Commit::Put { key, new_profile }),
        1 => key.clone().prop_map(|key| Commit::Disable { key }),
        3 => key.clone().prop_map(|key| Commit::Remove { key }),
        2 => (0..8u8).prop_map(|owners| Commit::Block { owners }),
    ];
    prop_oneof![
        8 => commit.prop_map(Step::Commit),
        5 => (replica.clone(), 0..4u64).prop_map(|(replica, revisions)| Step::CatchUp { replica, revisions }),
        2 => replica.clone().prop_map(|replica| Step::CutLog { replica }),
        1 => (0..6u64).prop_map(|revisions| Step::Restore { revisions }),
        3 => replica.prop_map(|replica| Step::Open { replica }),
        1 => stream.clone().prop_map(|stream| Step::Close { stream }),
        3 => stream.clone().prop_map(|stream| Step::Tick { stream }),
        8 => (stream.clone(), 1..8usize, any::<bool>())
            .prop_map(|(stream, messages, current)| Step::Send { stream, messages, current }),
        6 => (stream.clone(), 1..6usize).prop_map(|(stream, messages)| Step::Deliver { stream, messages }),
        2 => stream.clone().prop_map(|stream| Step::Pump { stream }),
        3 => (stream.clone(), 0..5u32).prop_map(|(stream, writes)| Step::Trap { stream, writes }),
        3 => (stream.clone(), 0..5u32, stream.clone(), 1..4usize)
            .prop_map(|(stream, calls, other, messages)| Step::Interrupt { stream, calls, other, messages }),
        3 => (key, 0..4u32, stream.clone()).prop_map(|(key, calls, stream)| Step::Read { key, calls, stream }),
        2 => Just(Step::NewReader),
        1 => stream.prop_map(|stream| Step::Keep { stream }),
        1 => Just(Step::Again),
        1 => (1..12u64).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

/// Runs the steps, looking at every key after each, then lets everything come to rest.
fn run(steps: &[Step], fault: Option<Fault>) -> Result<(), String> {
    let mut world = World::new(fault);
    let mut witness = Witness::default();
    for step in steps {
        world.now.mono += SECOND / 1000;
        world.now.wall += SECOND / 1000;
        take(&mut world, &mut witness, step)?;
        world.streams.retain(|stream| !stream.borrow().dead);
        witness.check(&mut world)?;
    }
    settle(&mut world)?;
    witness.check(&mut world)?;
    check_settled(&mut world)
}

fn take(world: &mut World, witness: &mut Witness, step: &Step) -> Result<(), String> {
    match *step {
        Step::Commit(ref commit) => world.commit(commit),
        Step::CatchUp { replica, revisions } => world.catch_up(replica, revisions),
        Step::CutLog { replica } => world.replicas[replica].cut_log(),
        Step::Restore { revisions } => world.restore(revisions),
        Step::Open { replica } => world.open(replica),
        Step::Wait { seconds } => {
            world.now.mono += seconds * SECOND;
            world.now.wall += seconds * SECOND;
        }
        Step::Again => world.again(),
        Step::NewReader => world.reader = Reader::default(),
        Step::Read { key, calls, stream } => {
            let Some(stream) = nth(world, stream) else { return Ok(()) };
            witness.look(world)?;
            world.send(&stream, usize::MAX);
            let answer = world.read(key, Some((calls, stream)));
            witness.judge(world, key, &answer, false)?;
        }
        Step::Close { stream }
        | Step::Tick { stream }
        | Step::Send { stream, .. }
        | Step::Deliver { stream, .. }
        | Step::Pump { stream }
        | Step::Trap { stream, .. }
        | Step::Interrupt { stream, .. }
        | Step::Keep { stream } => {
            if let Some(stream) = nth(world, stream) {
                on_stream(world, &stream, step);
            }
        }
    }
    Ok(())
}

fn on_stream(world: &mut World, stream: &Rc<RefCell<Stream>>, step: &Step) {
    match *step {
        Step::Close { .. } => stream.borrow_mut().dead = true,
        Step::Tick { .. } => world.tick(stream),
        Step::Send { messages, current, .. } => {
            if current {
                let replica = stream.borrow().replica;
                world.catch_up(replica, u64::MAX / 2);
                world.tick(stream);
            }
            world.send(stream, messages);
        }
        Step::Deliver { messages, .. } => world.deliver(stream, messages),
        Step::Pump { .. } => pump(world, stream),
        Step::Keep { .. } => world.deliver_and_keep(stream),
        Step::Trap { writes, .. } => {
            let store = Rc::clone(&world.store);
            store.trapping(writes, || world.deliver(stream, usize::MAX));
            stream.borrow_mut().dead = true;
        }
        Step::Interrupt { calls, other, messages, .. } => {
            let Some(other) = nth(world, other).filter(|other| !Rc::ptr_eq(other, stream)) else { return };
            let (store, now) = (Rc::clone(&world.store), world.now);
            let turn = move |store: &store::Store| deliver(store, &other, messages, now);
            store.interrupted(calls, turn, || world.deliver(stream, 1));
        }
        _ => {}
    }
}

fn nth(world: &World, n: usize) -> Option<Rc<RefCell<Stream>>> {
    world.streams.get(n.checked_rem(world.streams.len())?).cloned()
}

/// All that a replica has to say, and a mark.
fn pump(world: &mut World, stream: &RefCell<Stream>) {
    world.send(stream, usize::MAX);
    world.tick(stream);
    world.send(stream, usize::MAX);
    world.deliver(stream, usize::MAX);
}

/// Faults stop: what streams there are come to their end, and one is opened anew.
fn settle(world: &mut World) -> Result<(), String> {
    for replica in 0..2 {
        world.catch_up(replica, u64::MAX / 2);
    }
    for stream in world.streams.clone() {
        pump(world, &stream);
    }
    world.open(0);
    let stream = world.streams.last().cloned().ok_or("no stream")?;
    pump(world, &stream);
    if stream.borrow().dead { Err("a stream without faults was given up".to_owned()) } else { Ok(()) }
}

/// Random runs, the same each time. Returns the first run that breaks a law, made shorter by `shrink` tries at most.
fn explore(runs: u32, shrink: u32, fault: Option<Fault>) -> Option<(String, Vec<Step>)> {
    let mut runner = TestRunner::new(Config {
        cases: runs,
        failure_persistence: None,
        max_shrink_iters: shrink,
        rng_seed: RngSeed::Fixed(0x51ce),
        ..Config::default()
    });
    let steps = prop::collection::vec(step(), 0..STEPS);
    match runner.run(&steps, |steps| run(&steps, fault).map_err(TestCaseError::fail)) {
        Ok(()) => None,
        Err(TestError::Fail(reason, steps)) => Some((reason.to_string(), steps)),
        Err(TestError::Abort(reason)) => panic!("{reason}"),
    }
}

#[test]
fn the_laws_hold() {
    let runs = std::env::var("SLUICEGATE_MODEL_RUNS").map_or(300, |runs| runs.parse().unwrap());
    if let Some((reason, steps)) = explore(runs, 20_000, None) {
        panic!("{reason}, after {steps:#?}");
    }
}

/// One test per rule: without it, a law breaks within some runs, and with it not in the same run.
fn assert_needed(rule: Option<Rule>, fault: Option<Fault>) {
    let shrink = if std::env::var_os("SLUICEGATE_MODEL_SHRINK").is_some() { 20_000 } else { 0 };
    let (reason, steps) = rule::without(rule, || explore(4_000, shrink, fault)).expect("a run that breaks a law");
    if shrink > 0 {
        let steps: Vec<String> = steps.iter().map(|step| format!("{step:?}\n")).collect();
        eprintln!("{rule:?} {fault:?}: {reason}, after\n{}", steps.concat());
    }
    assert_eq!(run(&steps, None), Ok(()), "it was not for this rule: {reason}");
}

macro_rules! needed {
    ($($name:ident: $rule:expr, $fault:expr;)*) => { $(
        #[test]
        fn $name() {
            assert_needed($rule, $fault);
        }
    )* };
}

needed! {
    s10_a_stream_behind_the_list_ends: Some(Rule::S10Behind), None;
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
    s8_a_list_as_new_as_the_bucket: Some(Rule::S8List), None;
    s8_head_before_the_bucket: None, Some(Fault::BucketBeforeHead);
    s10_the_list_before_the_keys: None, Some(Fault::BlockedLast);
    s10_the_list_as_a_whole: None, Some(Fault::PartsForWhole);
    s10_a_list_loses_to_a_higher_stamp: Some(Rule::S10Stamp), None;
    s10_leaving_owners_stay_blocked: Some(Rule::S10Leaving), None;
    s11_a_profile_by_its_id: Some(Rule::S11), None;
    s11_profiles_before_keys: None, Some(Fault::ProfilesOnce);
}
