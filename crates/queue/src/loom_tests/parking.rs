//! Parked sessions: the engine polls them only after a notification, and must not miss one.

use loom::thread;

use super::{Bell, descriptor, doorbell_sides, model, without};
use crate::descriptor::{Descriptor, MAX_CHAIN};
use crate::doorbell::{self, Due};
use crate::test_memory::Pair;
use crate::word::Barrier;

/// A parked session: the engine does not poll it, awake or asleep, until a notification. The engine
/// goes to sleep without polling the session, by the flag that all sessions share. The engine finds
/// two batches, before and after it makes the session active again.
fn parks(news: u32, parks_anew: bool) {
    let pair = Pair::new(8, 8);
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let (mut sleeper, mut sleep_flag) = doorbell_sides();
    let (mut rest, mut parked_flag) = doorbell_sides();
    let far = bell;
    let writer = thread::spawn(move || {
        for buffer in 0..news {
            assert!(producer.push(&[descriptor(buffer)]));
            producer.publish();
            let fenced = doorbell::fence();
            let asleep = sleep_flag.must_notify(fenced, false);
            let parks = parked_flag.must_notify(fenced, true);
            if asleep == Due::Now || parks == Due::Now {
                far.notify();
            }
        }
    });
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    let (mut got, mut active) = (0, true);
    while got < news {
        if active {
            rest.awake();
            rest.prepare();
            active = server.transmit.observe().unwrap() > 0;
        }
        if !active {
            // No other work is left: the engine sleeps after it has polled the active sessions, of
            // which this one is none.
            sleeper.prepare();
            bell.sleep();
            sleeper.awake();
            active = server.transmit.observe().unwrap() > 0;
            if !active {
                // A late notification, for packets that the engine has found before: the engine
                // parks the session anew.
                active = parks_anew;
                continue;
            }
        }
        if active {
            rest.awake();
            while server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap().is_some()
            {
                got += 1;
            }
        }
    }
    writer.join().unwrap();
}

#[test]
fn no_news_of_a_parked_session_is_lost() {
    model(|| parks(2, true));
}

/// A notification may come late, for packets that the engine found without it. An engine that keeps
/// the session parked by the same flag loses the next notification: the session has sent one for
/// this flag, and sends no other.
#[test]
#[should_panic(expected = "deadlock")]
fn staying_parked_after_a_late_notification_loses_news() {
    model(|| parks(2, false));
}

#[test]
fn without_the_sleepers_barrier_parked_news_is_lost() {
    without(Barrier::SleeperChecks, || parks(1, true));
}

#[test]
fn without_the_notifiers_barrier_parked_news_is_lost() {
    without(Barrier::NotifierChecks, || parks(1, true));
}
