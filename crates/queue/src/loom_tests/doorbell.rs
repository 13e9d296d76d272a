//! Doorbells: no wake-up is lost, neither for a blocking sleeper nor for a timer-driven one.

use loom::thread;

use super::{Bell, descriptor, doorbell_sides, further_doorbell_sides, model, without};
use crate::descriptor::{Descriptor, MAX_CHAIN};
use crate::doorbell::{self, Due, PeerSleepFlag, Sleeper};
use crate::test_memory::Pair;
use crate::word::Barrier;

fn one_batch() {
    one_batch_by(doorbell_sides());
}

fn one_batch_by((mut sleeper, mut peer_flag): (Sleeper, PeerSleepFlag)) {
    let pair = Pair::new(8, 8);
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let far = bell;
    let writer = thread::spawn(move || {
        assert!(producer.push(&[descriptor(0)]));
        producer.publish();
        if peer_flag.must_notify(doorbell::fence(), false) == Due::Now {
            far.notify();
        }
    });
    loop {
        if server.transmit.observe().unwrap() > 0 {
            break;
        }
        sleeper.prepare();
        if server.transmit.observe().unwrap() == 0 {
            bell.sleep();
        }
        sleeper.awake();
    }
    writer.join().unwrap();
}

/// No wake-up is lost between a sleeper and its peer_flag.
#[test]
fn no_wake_up_is_lost() {
    model(one_batch);
}

/// The same for peers that see a further flag.
#[test]
fn no_wake_up_is_lost_by_a_further_flag() {
    model(|| one_batch_by(further_doorbell_sides()));
}

#[test]
fn without_the_sleepers_barrier_a_further_flag_loses_a_wake_up() {
    without(Barrier::SleeperChecks, || one_batch_by(further_doorbell_sides()));
}

#[test]
fn without_the_sleepers_barrier_a_wake_up_is_lost() {
    without(Barrier::SleeperChecks, one_batch);
}

#[test]
fn without_the_notifiers_barrier_a_wake_up_is_lost() {
    without(Barrier::NotifierChecks, one_batch);
}

/// The sleeper is timer-driven, and its tick never comes. Two batches cannot wait for the tick.
fn urgent_batches() {
    let pair = Pair::new(8, 8);
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let (mut sleeper, mut peer_flag) = doorbell_sides();
    let far = bell;
    let writer = thread::spawn(move || {
        for buffer in 0..2 {
            assert!(producer.push(&[descriptor(buffer)]));
            producer.publish();
            if peer_flag.must_notify(doorbell::fence(), true) == Due::Now {
                far.notify();
            }
        }
    });
    let mut seen = 0;
    while seen < 2 {
        let must_check = sleeper.prepare_timer_driven();
        if must_check {
            seen = server.transmit.observe().unwrap();
        }
        if seen < 2 {
            bell.sleep();
        }
        sleeper.awake_timer_driven();
        seen = server.transmit.observe().unwrap();
    }
    writer.join().unwrap();
}

#[test]
fn no_urgent_wake_up_of_a_timer_driven_side_is_lost() {
    model(urgent_batches);
}

#[test]
fn without_the_sleepers_barrier_an_urgent_wake_up_is_lost() {
    without(Barrier::SleeperChecks, urgent_batches);
}

#[test]
fn without_the_notifiers_barrier_an_urgent_wake_up_is_lost() {
    without(Barrier::NotifierChecks, urgent_batches);
}

/// A timer-driven side receives no notification, and then changes to a sleep that only a
/// notification ends. Its check finds work from before the change, and later work causes a
/// notification.
#[test]
fn no_wake_up_is_lost_from_timer_driven_to_blocked() {
    model(|| {
        let pair = Pair::new(8, 8);
        let bell = Bell::new();
        let (mut producer, _) = pair.application();
        let mut server = pair.server();
        let (mut sleeper, mut peer_flag) = doorbell_sides();
        let far = bell;
        let writer = thread::spawn(move || {
            assert!(producer.push(&[descriptor(0)]));
            producer.publish();
            if peer_flag.must_notify(doorbell::fence(), false) == Due::Now {
                far.notify();
            }
        });
        // The tick comes at once.
        let _ = sleeper.prepare_timer_driven();
        sleeper.awake_timer_driven();
        while server.transmit.observe().unwrap() == 0 {
            sleeper.prepare();
            if server.transmit.observe().unwrap() == 0 {
                bell.sleep();
            }
            sleeper.awake();
        }
        writer.join().unwrap();
    });
}

/// Each sleep gets its notification: two batches, two sleeps.
#[test]
fn one_notification_for_each_sleep() {
    model(|| {
        let pair = Pair::new(8, 8);
        let bell = Bell::new();
        let (mut producer, _) = pair.application();
        let mut server = pair.server();
        let (mut sleeper, mut peer_flag) = doorbell_sides();
        let far = bell;
        let writer = thread::spawn(move || {
            for buffer in 0..2 {
                assert!(producer.push(&[descriptor(buffer)]));
                producer.publish();
                if peer_flag.must_notify(doorbell::fence(), false) == Due::Now {
                    far.notify();
                }
            }
        });
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        let mut got = 0;
        while got < 2 {
            sleeper.prepare();
            if server.transmit.observe().unwrap() == 0 {
                bell.sleep();
            }
            sleeper.awake();
            server.transmit.observe().unwrap();
            while server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap().is_some()
            {
                got += 1;
            }
        }
        writer.join().unwrap();
    });
}
