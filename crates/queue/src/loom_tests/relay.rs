//! Notifications that a third side makes: the engine counts each up and calls the worker, which looks at
//! all counters once it was called.

use loom::thread;

use super::{Bell, model};
use crate::test_memory::Memory;

/// Two sessions' notifications, each called for; the worker takes the calls and looks at both counters.
fn relayed(calls_first: bool) {
    let counters = Memory::new(2);
    let (mut own, seen) = (counters.own(), counters.peer());
    let bell = Bell::new();
    let far = bell;
    let engine = thread::spawn(move || {
        for place in 0..2 {
            if calls_first {
                far.ring();
            }
            own.publish(place, 1);
            if !calls_first {
                far.ring();
            }
        }
    });
    let mut notified = [0; 2];
    while notified != [1, 1] {
        bell.sleep();
        notified = [0, 1].map(|place| seen.observe(place));
    }
    engine.join().unwrap();
}

#[test]
fn no_notification_is_lost_on_its_way_through_a_worker() {
    model(|| relayed(false));
}

/// Counted up only after the call, one is lost: the worker sleeps for ever.
#[test]
fn a_call_before_its_counter_loses_a_notification() {
    let found = std::panic::catch_unwind(|| model(|| relayed(true)));
    assert!(found.is_err(), "loom found nothing wrong");
}
