//! Ledgers: of a driver that notes what it has handled before it reuses the places of that, and of
//! connections, whose places another thread reads.

use loom::sync::atomic::{Ordering, fence};
use loom::thread;

use super::{model, without};
use crate::test_memory::Memory;
use crate::word::{Barrier, OwnWords};

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

/// The words of a place: the connection that has it, 0 for none, and two that are stored once for it.
const CONNECTION: usize = 0;
const ADDRESS: [usize; 2] = [1, 2];

/// A reader finds only whole connections while one gives its place to the next.
fn one_connection_at_a_time() {
    let memory = Memory::new(3);
    let (mut own, peer) = (memory.own(), memory.peer());
    let add = |own: &mut OwnWords, connection| {
        ADDRESS.iter().for_each(|word| own.store(*word, connection));
        own.publish(CONNECTION, connection);
    };
    add(&mut own, 1);
    let owner = thread::spawn(move || {
        own.publish_ahead(CONNECTION, 0);
        add(&mut own, 2);
    });
    let read = |connection| (connection, ADDRESS.map(|word| peer.fetch(word)));
    if let Some((connection, address)) = peer.observe_around(CONNECTION, read) {
        assert!(connection == 0 || address == [connection; 2], "{address:?} of {connection}");
    }
    owner.join().unwrap();
}

#[test]
fn a_place_is_read_of_one_connection() {
    model(one_connection_at_a_time);
}

#[test]
fn without_the_writers_fence_a_place_is_read_of_two() {
    without(Barrier::LaterStores, one_connection_at_a_time);
}

#[test]
fn without_the_readers_fence_a_place_is_read_of_two() {
    without(Barrier::EarlierLoads, one_connection_at_a_time);
}
