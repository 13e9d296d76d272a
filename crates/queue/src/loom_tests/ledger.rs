//! A ledger in which a driver notes what it has handled before it reuses the places of that.

use loom::sync::atomic::{Ordering, fence};
use loom::thread;

use super::{model, without};
use crate::test_memory::Memory;
use crate::word::Barrier;

/// The words: what was handled, and one of the places.
const HANDLED: usize = 0;
const PLACE: usize = 1;

/// A reader that finds a place reused knows that its earlier content was handled.
fn handled_before_reuse() {
    let memory = Memory::new(2);
    let (mut own, peer) = (memory.own(), memory.peer());
    let owner = thread::spawn(move || {
        own.publish_ahead(HANDLED, 1);
        own.store(PLACE, 1);
        own.publish_ahead(HANDLED, 2);
        own.store(PLACE, 2);
    });
    let place = peer.fetch(PLACE);
    fence(Ordering::Acquire);
    assert!(peer.fetch(HANDLED) >= place, "a place is reused whose content may not be handled");
    owner.join().unwrap();
}

#[test]
fn what_was_handled_is_known_before_its_place_is_reused() {
    model(handled_before_reuse);
}

#[test]
fn without_the_fence_a_place_is_reused_too_early() {
    without(Barrier::LaterStores, handled_before_reuse);
}
