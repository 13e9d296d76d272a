//! Every ordering, explored by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p towpath-queue --release`.
//!
//! A wake-up is lost when the sleeper sleeps for ever with work in its queue: in the model, a
//! deadlock. For each barrier a test shows that loom finds the failure when the barrier is taken
//! out. This module holds the code that the tests share. Each file has the tests of one
//! interaction.

mod doorbell;
mod events;
mod handoff;
mod ledger;
mod oob;
mod optimistic;
mod parking;
mod queues;
mod relay;
mod ring;
mod room;
mod tripwire;

use std::cell::Cell;

use loom::sync::{Condvar, Mutex};

use crate::descriptor::{Descriptor, HEADROOM_BYTES};
use crate::doorbell::{PeerSleepFlag, Sleeper};
use crate::events::{Acknowledger, EventShape, Marker};
use crate::test_memory::Memory;
use crate::word::Barrier;

thread_local! {
    // The model runs all of its threads on one thread of the system, so all of them see this value.
    static TAKEN_OUT: Cell<Option<Barrier>> = const { Cell::new(None) };
}

pub(crate) fn is_taken_out(barrier: Barrier) -> bool {
    TAKEN_OUT.get() == Some(barrier)
}

fn without(barrier: Barrier, body: impl Fn() + Sync + Send + 'static) {
    TAKEN_OUT.set(Some(barrier));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model(body)));
    TAKEN_OUT.set(None);
    assert!(result.is_err(), "loom found nothing wrong without {barrier:?}");
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// A notification that persists until the sleeper takes it: a socket or an eventfd.
#[derive(Default)]
struct Bell {
    notified: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> &'static Bell {
        Box::leak(Box::default())
    }

    fn notify(&self) {
        *self.notified.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut notified = self.notified.lock().unwrap();
        while !*notified {
            notified = self.changed.wait(notified).unwrap();
        }
        *notified = false;
    }
}

fn descriptor(buffer: u32) -> Descriptor {
    Descriptor { buffer, start: HEADROOM_BYTES, len: 60 + buffer, endpoint: 0, flags: 0 }
}

/// Returns the side that sleeps, and the side that notifies it.
fn doorbell_sides() -> (Sleeper, PeerSleepFlag) {
    let flag = Memory::new(1);
    (Sleeper::new(flag.own()), PeerSleepFlag::new(flag.peer()))
}

/// Returns the side that sleeps, and the side that notifies it by a further flag.
fn further_doorbell_sides() -> (Sleeper, PeerSleepFlag) {
    let (mut sleeper, _) = doorbell_sides();
    let flag = Memory::new(1);
    sleeper.add(7, flag.own());
    (sleeper, PeerSleepFlag::new(flag.peer()))
}

/// Returns both sides of an event queue for one queue pair.
fn event_sides() -> (Marker, Acknowledger) {
    let shape = EventShape::new(1).unwrap();
    let marker_words = Memory::new(shape.marker_words());
    let acknowledger_words = Memory::new(shape.acknowledger_words());
    let marker = Marker::new(shape, marker_words.own(), &acknowledger_words.peer());
    (marker, Acknowledger::new(shape, acknowledger_words.own(), &marker_words.peer()))
}
