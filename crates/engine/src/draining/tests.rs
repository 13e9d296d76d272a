use towpath_queue::descriptor::{Descriptor, MAX_CHAIN};

use super::*;
use crate::testing::{PORT, outward, session};

const BEGIN: u64 = 1_000;

/// Takes steps up to the first one after which the session's turn is over.
fn steps(draining: &mut Draining, session: &mut Session, waits: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    while !matches!(steps.last(), Some(Step::Waits | Step::Over)) {
        steps.push(draining.step(session, waits, BEGIN).unwrap());
    }
    steps
}

/// Takes a packet out of the queue pair, as the engine does.
fn take(session: &mut Session) {
    let (queue, ledger, _) = session.transmit.parts(0);
    let taken = queue.consumer.take(ledger, &mut [Descriptor::default(); MAX_CHAIN]);
    assert!(taken.unwrap().is_some());
}

#[test]
fn a_session_is_over_once_its_packets_are_sent() {
    let (mut session, mut application) = session(1);
    (0..2).for_each(|buffer| application.send(buffer, 0, &outward(PORT)));
    let mut draining = Draining::new(0, 1, BEGIN);
    assert_eq!(steps(&mut draining, &mut session, true), [Step::Found(0), Step::Waits]);
    // A packet after the end does not count.
    application.send(2, 0, &outward(PORT));
    take(&mut session);
    assert_eq!(steps(&mut draining, &mut session, true), [Step::Waits]);
    take(&mut session);
    (0..2).for_each(|_| session.transmit.begin_in_flight());
    assert_eq!(steps(&mut draining, &mut session, true), [Step::Empty, Step::Waits]);
    assert_eq!(steps(&mut draining, &mut session, false), [Step::Over], "the device has all");
    session.transmit.forget_in_flight();
    assert_eq!(steps(&mut draining, &mut session, true), [Step::Over]);
}

#[test]
fn a_session_without_packets_is_over_at_once() {
    let (mut session, _application) = session(1);
    let mut draining = Draining::new(0, 1, BEGIN);
    assert_eq!(steps(&mut draining, &mut session, true), [Step::Empty, Step::Over]);
}

#[test]
fn packets_wait_for_a_limited_time() {
    let (mut session, mut application) = session(1);
    application.send(0, 0, &outward(PORT));
    let mut draining = Draining::new(0, 1, BEGIN);
    assert_eq!(steps(&mut draining, &mut session, true), [Step::Found(0), Step::Waits]);
    let until = BEGIN + DRAIN_NS;
    assert_eq!(draining.step(&mut session, true, until - 1), Ok(Step::Waits));
    assert_eq!(draining.step(&mut session, true, until), Ok(Step::Over));
}

/// Passes all turns that are due. Returns the sessions in the order of their turns.
fn round(all: &mut DrainingSessions) -> Vec<u32> {
    let mut order = Vec::new();
    while let Some(draining) = all.current() {
        order.push(draining.key);
        all.pass();
    }
    order
}

#[test]
fn every_session_gets_a_turn_after_work() {
    let mut all = DrainingSessions::default();
    (0..100).for_each(|key| all.push(Draining::new(key, key, BEGIN + u64::from(key))));
    assert_eq!(round(&mut all), (0..100).collect::<Vec<_>>());
    all.begin(false, BEGIN);
    assert!(!all.has_left(), "nothing has changed");
    all.begin(true, BEGIN);
    assert!(all.has_left());
    // The engine stops in the middle of a session, and continues with the next one.
    all.interrupt();
    let order: Vec<u32> = (1..100).chain([0]).collect();
    assert_eq!(round(&mut all), order);
    assert_eq!(all.next_due(), Some(BEGIN + DRAIN_NS));
    all.begin(false, BEGIN + DRAIN_NS);
    assert_eq!(all.current().unwrap().key, 1);
    all.remove();
    assert_eq!(round(&mut all), (2..100).chain([0]).collect::<Vec<_>>());
}
