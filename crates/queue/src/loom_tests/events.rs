//! Event queues with their doorbells: news of a queue pair reaches the sleeping side.

use loom::thread;

use super::{Bell, descriptor, doorbell_sides, event_sides, model, without};
use crate::descriptor::{Descriptor, MAX_CHAIN};
use crate::doorbell::{self, Due};
use crate::events;
use crate::test_memory::Pair;
use crate::word::Barrier;

/// News of a queue pair reaches a side that sleeps on its event queue. The producer publishes the
/// queue, marks its event where none is pending, and sends a notification only for new events.
fn batches(news: u32, together: bool) {
    let pair = Pair::new(8, 8);
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let (mut marker, mut acknowledger) = event_sides();
    let (mut sleeper, mut peer_flag) = doorbell_sides();
    let far = bell;
    let writer = thread::spawn(move || {
        for buffer in 0..news {
            assert!(producer.push(&[descriptor(buffer)]));
            producer.publish();
            let fenced = events::fence();
            marker.mark(fenced, 0).unwrap();
            let new = marker.publish();
            // The producer sends a deferred notification whether or not the last batch's event is
            // new.
            let notifies = if together { buffer + 1 == news } else { new };
            if notifies && peer_flag.must_notify(doorbell::fence(), false) == Due::Now {
                far.notify();
            }
        }
    });
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    let mut got = 0;
    while got < news {
        let found = acknowledger.take(8, |_| {}).unwrap();
        if found == 0 {
            sleeper.prepare();
            if acknowledger.is_idle().unwrap() {
                bell.sleep();
            }
            sleeper.awake();
            continue;
        }
        server.transmit.observe().unwrap();
        while server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap().is_some() {
            got += 1;
        }
    }
    writer.join().unwrap();
}

#[test]
fn no_event_is_lost() {
    model(|| batches(2, false));
}

#[test]
fn without_the_markers_barrier_an_event_is_lost() {
    without(Barrier::MarkerChecks, || batches(2, false));
}

#[test]
fn without_the_acknowledgers_barrier_an_event_is_lost() {
    without(Barrier::AcknowledgerChecks, || batches(2, false));
}

/// One notification for two batches. The producer publishes the first with its notification
/// deferred.
#[test]
fn a_deferred_notification_covers_all_earlier_batches() {
    model(|| batches(2, true));
}
