//! Notifications through a third side: the engine increments a session's counter and calls the
//! worker, which reads all counters after each call.

use loom::thread;

use super::{Bell, model};
use crate::test_memory::Memory;

/// Two sessions' notifications, each with a call. The worker takes the calls and reads both
/// counters.
fn relayed(calls_first: bool) {
    let counters = Memory::new(2);
    let (mut own, seen) = (counters.own(), counters.peer());
    let bell = Bell::new();
    let far = bell;
    let engine = thread::spawn(move || {
        for place in 0..2 {
            if calls_first {
                far.notify();
            }
            own.publish(place, 1);
            if !calls_first {
                far.notify();
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
fn no_notification_is_lost_through_a_worker() {
    model(|| relayed(false));
}

/// An engine that increments a counter only after the call loses the notification: the worker
/// sleeps for ever.
#[test]
fn a_call_before_its_counter_loses_a_notification() {
    let found = std::panic::catch_unwind(|| model(|| relayed(true)));
    assert!(found.is_err(), "loom found nothing wrong");
}
