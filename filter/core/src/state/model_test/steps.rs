//! What can happen, one step after the other.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use super::fault::Fault;
use super::laws::{Witness, check_settled};
use super::store::Store;
use super::world::{Commit, KEYS, Stream, World, deliver};
use crate::state::Reader;

const SECOND: u64 = 1_000_000_000;
const STEPS: usize = 100;

#[derive(Clone, Debug)]
pub enum Step {
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
    /// All that a replica has for a stream, however old, and a mark.
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

/// From a cold Envoy, or from one that has everything.
pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let warm = [Step::Open { replica: 0 }, Step::Pump { stream: 0 }];
    (0..=warm.len(), prop::collection::vec(step(), 0..STEPS))
        .prop_map(move |(warmed, steps)| warm[..warmed].iter().cloned().chain(steps).collect())
}

/// Runs the steps, looking at every key after each, then lets everything come to rest.
pub fn run(steps: &[Step], fault: Option<Fault>) -> Result<(), String> {
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
            let turn = move |store: &Store| deliver(store, &other, messages, now);
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
