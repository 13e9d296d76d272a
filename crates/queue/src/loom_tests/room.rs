//! Room for a sender that waits for it.

use loom::thread;

use super::{Bell, descriptor, doorbell_sides, event_sides, model, without};
use crate::descriptor::{Descriptor, MAX_CHAIN};
use crate::doorbell::{self, Due};
use crate::events;
use crate::test_memory::Pair;
use crate::word::Barrier;

/// A sender that waits for room gets an event: the server publishes the commit index, and reads the
/// request after a fence. The sender checks once after its request, and then only when its event
/// comes.
fn room() {
    let pair = Pair::new(8, 16);
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let (mut marker, mut acknowledger) = event_sides();
    let (mut sleeper, mut peer_flag) = doorbell_sides();
    assert!(producer.push(&[descriptor(0)]));
    producer.publish();
    let far = bell;
    let worker = thread::spawn(move || {
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        server.transmit.observe().unwrap();
        let (count, first) =
            server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap().unwrap();
        server.transmit.complete(&mut server.transmit_ledger, first, count as u32);
        server.transmit.publish();
        let fenced = events::fence();
        if server.transmit.is_wanted() {
            marker.mark(fenced, 0).unwrap();
        }
        if marker.publish() && peer_flag.must_notify(doorbell::fence(), false) == Due::Now {
            far.notify();
        }
    });
    producer.want(1);
    let mut there = producer.reclaim(|_| {}).unwrap() == 1;
    while !there {
        if acknowledger.take(1, |_| {}).unwrap() > 0 {
            there = producer.reclaim(|_| {}).unwrap() == 1;
            assert!(there, "the event came before the room");
            break;
        }
        sleeper.prepare();
        if acknowledger.is_idle().unwrap() {
            bell.sleep();
        }
        sleeper.awake();
    }
    worker.join().unwrap();
}

#[test]
fn awaited_room_is_reported() {
    model(room);
}

#[test]
fn without_the_markers_barrier_a_request_for_room_is_missed() {
    without(Barrier::MarkerChecks, room);
}

#[test]
fn without_the_requesters_barrier_room_is_missed() {
    without(Barrier::RequesterChecks, room);
}
