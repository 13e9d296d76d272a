//! Tripwires: an access to memory reaches the owner that sleeps.

use loom::thread;

use super::{Bell, model, without};
use crate::test_memory::Memory;
use crate::tripwire::{ArmedWord, Firing, TripwireShape, Tripwires, fence};
use crate::word::Barrier;

/// An accessor stores into the memory twice, and has the server fire if the tripwire is armed. The
/// owner sleeps while it has not seen the last store.
fn accesses() {
    let shape = TripwireShape::new(1);
    let (armed, fired) = (Memory::new(shape.owner_words()), Memory::new(shape.server_words()));
    let memory = Memory::new(1);
    let bell = Bell::new();
    let mut own = Tripwires::new(shape, armed.own(), fired.peer());
    let mut firing = Firing::new(shape, fired.own(), armed.peer());
    let mut word = ArmedWord::new(armed.peer(), 0).unwrap();
    let mut stored = memory.own();
    let seen = memory.peer();
    let accessor = thread::spawn(move || {
        for value in 1..=2 {
            stored.publish(0, value);
            let fenced = fence();
            if word.must_report(fenced) && firing.fire(fence(), 0) {
                bell.notify();
            }
        }
    });
    while seen.observe(0) < 2 {
        own.arm(0);
        if seen.observe(0) < 2 {
            while !own.has_fired(0) {
                bell.sleep();
            }
        }
        own.disarm(0);
    }
    accessor.join().unwrap();
}

#[test]
fn no_access_is_lost() {
    model(accesses);
}

#[test]
fn without_the_armers_barrier_an_access_is_lost() {
    without(Barrier::ArmerChecks, accesses);
}

#[test]
fn without_the_accessors_barrier_an_access_is_lost() {
    without(Barrier::AccessorChecks, accesses);
}
