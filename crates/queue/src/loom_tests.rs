//! Every ordering, explored by loom: `RUSTFLAGS="--cfg loom" cargo test -p towpath-queue --release`.
//!
//! A wake-up is lost when the sleeper sleeps for ever with work in its queue: in the model, a
//! deadlock. For each of the barriers there is a test that loom does find that deadlock, or
//! the event that goes with it, when the barrier is taken out.

use std::cell::Cell;

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use crate::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN};
use crate::doorbell::{self, Due, Ringer, Sleeper};
use crate::events::{self, Acknowledger, EventShape, Marker};
use crate::optimistic::{Entered, Left, Optimistic};
use crate::test_memory::{Memory, Pair};
use crate::word::Barrier;

thread_local! {
    // The model runs all of its threads on one thread of the system, so this reaches them all.
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

/// A ring that persists until it is taken: a pipe or an eventfd.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn new() -> &'static Bell {
        Box::leak(Box::default())
    }

    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
        *rung = false;
    }
}

fn descriptor(frame: u32) -> Descriptor {
    Descriptor { frame, start: HEADROOM_BYTES, len: 60 + frame, endpoint: 0, flags: 0 }
}

/// What is observed was written: descriptors are never seen before their words are.
#[test]
fn what_is_observed_was_written() {
    model(|| {
        let pair = Pair::new(8, 8);
        let (mut producer, _) = pair.application();
        let mut server = pair.server();
        let writer = thread::spawn(move || {
            for frame in 0..2 {
                assert!(producer.push(&[descriptor(frame)]));
                producer.publish();
            }
        });
        let mut expected = 0;
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        for _ in 0..3 {
            server.transmit.observe().unwrap();
            while let Some((count, first)) =
                server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap()
            {
                assert_eq!((count, packet[0]), (1, descriptor(expected)));
                server.transmit.complete(&mut server.transmit_ledger, first, 1);
                expected += 1;
            }
            server.transmit.publish();
        }
        writer.join().unwrap();
    });
}

/// A slot is not written again before it was read: the commit index orders that.
#[test]
fn a_received_descriptor_is_whole() {
    model(|| {
        let pair = Pair::new(8, 8);
        let (_, mut consumer) = pair.application();
        let mut server = pair.server();
        assert!(consumer.provide(3) && consumer.provide(5));
        consumer.publish();
        let writer = thread::spawn(move || {
            for _ in 0..2 {
                if server.receive.observe(&mut server.receive_ledger).unwrap() > 0 {
                    let frame = server.receive.frame(0);
                    server.receive.push(&mut server.receive_ledger, descriptor(frame));
                    server.receive.publish();
                }
            }
        });
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        let mut expected = [3, 5].into_iter();
        for _ in 0..2 {
            consumer.observe().unwrap();
            while consumer.take(&mut packet).unwrap() > 0 {
                assert_eq!(packet[0], descriptor(expected.next().unwrap()));
                assert!(consumer.provide(packet[0].frame));
                consumer.publish();
            }
        }
        writer.join().unwrap();
    });
}

fn one_batch() {
    let pair = Pair::new(8, 8);
    let flag = Memory::new(1);
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let (mut sleeper, mut ringer) = (Sleeper::new(flag.own()), Ringer::new(flag.peer()));
    let far = bell;
    let writer = thread::spawn(move || {
        assert!(producer.push(&[descriptor(0)]));
        producer.publish();
        if ringer.must_ring(doorbell::fence(), false) == Due::Now {
            far.ring();
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

/// No wake-up is lost between a sleeper and a ringer.
#[test]
fn no_wake_up_is_lost() {
    model(one_batch);
}

#[test]
fn without_the_sleepers_barrier_a_wake_up_is_lost() {
    without(Barrier::SleeperLooks, one_batch);
}

#[test]
fn without_the_ringers_barrier_a_wake_up_is_lost() {
    without(Barrier::RingerLooks, one_batch);
}

/// The sleeper looks by the clock, whose tick never comes, and two batches cannot wait for it.
fn urgent_batches() {
    let pair = Pair::new(8, 8);
    let flag = Memory::new(1);
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let (mut sleeper, mut ringer) = (Sleeper::new(flag.own()), Ringer::new(flag.peer()));
    let far = bell;
    let writer = thread::spawn(move || {
        for frame in 0..2 {
            assert!(producer.push(&[descriptor(frame)]));
            producer.publish();
            if ringer.must_ring(doorbell::fence(), true) == Due::Now {
                far.ring();
            }
        }
    });
    let mut seen = 0;
    while seen < 2 {
        let must_look = sleeper.prepare_by_the_clock();
        if must_look {
            seen = server.transmit.observe().unwrap();
        }
        if seen < 2 {
            bell.sleep();
        }
        sleeper.awake_by_the_clock();
        seen = server.transmit.observe().unwrap();
    }
    writer.join().unwrap();
}

#[test]
fn no_urgent_wake_up_of_a_clocked_side_is_lost() {
    model(urgent_batches);
}

#[test]
fn without_the_sleepers_barrier_an_urgent_wake_up_is_lost() {
    without(Barrier::SleeperLooks, urgent_batches);
}

#[test]
fn without_the_ringers_barrier_an_urgent_wake_up_is_lost() {
    without(Barrier::RingerLooks, urgent_batches);
}

/// A side that looks by the clock, is not rung, and then sleeps until it is: what came before the
/// change is found by the look, what comes after it rings.
#[test]
fn no_wake_up_is_lost_from_the_clock_to_sleep() {
    model(|| {
        let pair = Pair::new(8, 8);
        let flag = Memory::new(1);
        let bell = Bell::new();
        let (mut producer, _) = pair.application();
        let mut server = pair.server();
        let (mut sleeper, mut ringer) = (Sleeper::new(flag.own()), Ringer::new(flag.peer()));
        let far = bell;
        let writer = thread::spawn(move || {
            assert!(producer.push(&[descriptor(0)]));
            producer.publish();
            if ringer.must_ring(doorbell::fence(), false) == Due::Now {
                far.ring();
            }
        });
        // The tick comes at once, and finds nothing to wait for.
        let _ = sleeper.prepare_by_the_clock();
        sleeper.awake_by_the_clock();
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

/// One ring for two batches, the first of which is published and not rung for.
#[test]
fn a_ring_that_was_put_off_is_for_all_before_it() {
    model(|| batches(2, true));
}

/// Rings once for each sleep, and for every sleep: two batches, two sleeps.
#[test]
fn a_ring_for_every_sleep() {
    model(|| {
        let pair = Pair::new(8, 8);
        let flag = Memory::new(1);
        let bell = Bell::new();
        let (mut producer, _) = pair.application();
        let mut server = pair.server();
        let (mut sleeper, mut ringer) = (Sleeper::new(flag.own()), Ringer::new(flag.peer()));
        let far = bell;
        let writer = thread::spawn(move || {
            for frame in 0..2 {
                assert!(producer.push(&[descriptor(frame)]));
                producer.publish();
                if ringer.must_ring(doorbell::fence(), false) == Due::Now {
                    far.ring();
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

/// News of a queue set reach a side that sleeps on its event queue: the queue is published, its
/// event marked where none is pending, and the bell rung only for new events.
fn batches(news: u32, together: bool) {
    let shape = EventShape::new(1).unwrap();
    let marker_words = Memory::new(shape.marker_words());
    let acknowledger_words = Memory::new(shape.acknowledger_words());
    let flag = Memory::new(1);
    let pair = Pair::new(8, 8);
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let mut marker = Marker::new(shape, marker_words.own(), &acknowledger_words.peer());
    let mut acknowledger = Acknowledger::new(shape, acknowledger_words.own(), &marker_words.peer());
    let (mut sleeper, mut ringer) = (Sleeper::new(flag.own()), Ringer::new(flag.peer()));
    let far = bell;
    let writer = thread::spawn(move || {
        for frame in 0..news {
            assert!(producer.push(&[descriptor(frame)]));
            producer.publish();
            let fenced = events::fence();
            marker.mark(fenced, 0).unwrap();
            let new = marker.publish();
            // A ring that was put off is made whether or not the last batch's event is new.
            let rings = if together { frame + 1 == news } else { new };
            if rings && ringer.must_ring(doorbell::fence(), false) == Due::Now {
                far.ring();
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
    without(Barrier::MarkerLooks, || batches(2, false));
}

#[test]
fn without_the_acknowledgers_barrier_an_event_is_lost() {
    without(Barrier::AcknowledgerLooks, || batches(2, false));
}

/// A session that rests: the engine does not look at it, awake or asleep, until it rings. The engine
/// goes to sleep without a look at it, by the flag that all sessions have, and two batches are found,
/// before and after it was watched again.
fn rests(news: u32, rests_anew: bool) {
    let pair = Pair::new(8, 8);
    let (all, own) = (Memory::new(1), Memory::new(1));
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let (mut sleeper, mut sleep_ringer) = (Sleeper::new(all.own()), Ringer::new(all.peer()));
    let (mut rest, mut rest_ringer) = (Sleeper::new(own.own()), Ringer::new(own.peer()));
    let far = bell;
    let writer = thread::spawn(move || {
        for frame in 0..news {
            assert!(producer.push(&[descriptor(frame)]));
            producer.publish();
            let fenced = doorbell::fence();
            let asleep = sleep_ringer.must_ring(fenced, false);
            let rests = rest_ringer.must_ring(fenced, true);
            if asleep == Due::Now || rests == Due::Now {
                far.ring();
            }
        }
    });
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    let (mut got, mut watched) = (0, true);
    while got < news {
        if watched {
            rest.awake();
            rest.prepare();
            watched = server.transmit.observe().unwrap() > 0;
        }
        if !watched {
            // Nothing else is to be done: it sleeps, having looked at those that it watches, and not
            // at this one.
            sleeper.prepare();
            bell.sleep();
            sleeper.awake();
            watched = server.transmit.observe().unwrap() > 0;
            if !watched {
                // A late ring, for what an earlier look has found: it begins to rest anew.
                watched = rests_anew;
                continue;
            }
        }
        if watched {
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
fn no_news_of_a_session_that_rests_are_lost() {
    model(|| rests(2, true));
}

/// A ring may come late, for what was found without it. Whoever goes on resting by the same flag then
/// has it taken for a ring that is yet to be answered, and is not rung again.
#[test]
#[should_panic(expected = "deadlock")]
fn resting_on_after_a_late_ring_loses_news() {
    model(|| rests(2, false));
}

#[test]
fn without_the_sleepers_barrier_news_of_a_session_that_rests_are_lost() {
    without(Barrier::SleeperLooks, || rests(1, true));
}

#[test]
fn without_the_ringers_barrier_news_of_a_session_that_rests_are_lost() {
    without(Barrier::RingerLooks, || rests(1, true));
}

/// A sender that waits for room is told: the commit is published, the wish read after a fence. The
/// sender looks once after its wish, and then only when its event comes.
fn room() {
    let pair = Pair::new(8, 16);
    let shape = EventShape::new(1).unwrap();
    let marker_words = Memory::new(shape.marker_words());
    let acknowledger_words = Memory::new(shape.acknowledger_words());
    let flag = Memory::new(1);
    let bell = Bell::new();
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let mut marker = Marker::new(shape, marker_words.own(), &acknowledger_words.peer());
    let mut events = Acknowledger::new(shape, acknowledger_words.own(), &marker_words.peer());
    let (mut sleeper, mut ringer) = (Sleeper::new(flag.own()), Ringer::new(flag.peer()));
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
        if marker.publish() && ringer.must_ring(doorbell::fence(), false) == Due::Now {
            far.ring();
        }
    });
    producer.want(1);
    let mut there = producer.reclaim(|_| {}).unwrap() == 1;
    while !there {
        if events.take(1, |_| {}).unwrap() > 0 {
            there = producer.reclaim(|_| {}).unwrap() == 1;
            assert!(there, "told too early");
            break;
        }
        sleeper.prepare();
        if events.is_idle().unwrap() {
            bell.sleep();
        }
        sleeper.awake();
    }
    worker.join().unwrap();
}

#[test]
fn room_that_is_waited_for_is_told() {
    model(room);
}

#[test]
fn without_the_markers_barrier_a_wish_for_room_is_overlooked() {
    without(Barrier::MarkerLooks, room);
}

#[test]
fn without_the_wishers_barrier_room_is_overlooked() {
    without(Barrier::WisherLooks, room);
}

/// What one brings, in its order: what was left is done before. Slots hold their number's work in
/// `memory`, one value each.
type Section = Optimistic<Vec<u64>>;

fn slots(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

fn do_what_was_left(entered: &mut Entered<'_, Vec<u64>>, memory: &[AtomicU64]) -> bool {
    while let Some(slot) = entered.take() {
        let value = memory[slot as usize].load(Ordering::Relaxed);
        entered.state().push(value);
        entered.release(slot);
    }
    true
}

/// Does a piece of work or leaves it; `false` when there was no room to.
fn bring(section: &Section, memory: &[AtomicU64], value: u64) -> bool {
    if let Some(mut entered) = section.try_enter() {
        do_what_was_left(&mut entered, memory);
        let mut brought = true;
        if entered.is_nothing_left() {
            entered.state().push(value);
        } else if let Some(leaving) = entered.leave() {
            memory[leaving.slot() as usize].store(value, Ordering::Relaxed);
            leaving.publish();
            do_what_was_left(&mut entered, memory);
        } else {
            brought = false;
        }
        if entered.exit() != Left::Nothing {
            section.drive(|entered| do_what_was_left(entered, memory));
        }
        return brought;
    }
    let Some(leaving) = section.leave() else { return false };
    memory[leaving.slot() as usize].store(value, Ordering::Relaxed);
    leaving.publish();
    section.drive(|entered| do_what_was_left(entered, memory));
    true
}

/// Several threads bring work; when all have gone, all of it is done, each one's in its order.
/// That one at a time is inside is checked by the model at every access of the state.
fn all_is_done(threads: u64, each: u64, room: u32) {
    let section = Arc::new(Section::new(room, Vec::new()).unwrap());
    let memory = slots(room as usize);
    let mut brought = Vec::new();
    let others: Vec<_> = (1..threads)
        .map(|number| {
            let (section, memory) = (section.clone(), memory.clone());
            thread::spawn(move || {
                let work = (0..each).map(|one| number << 8 | one);
                work.filter(|value| bring(&section, &memory, *value)).collect::<Vec<_>>()
            })
        })
        .collect();
    brought.extend((0..each).filter(|value| bring(&section, &memory, *value)));
    for other in others {
        brought.extend(other.join().unwrap());
    }
    let mut entered = section.try_enter().expect("all have gone");
    assert!(entered.is_nothing_left(), "work was left that nobody did");
    let mut done = core::mem::take(entered.state());
    for number in 0..threads {
        let theirs = |list: &[u64]| {
            list.iter().copied().filter(|one| one >> 8 == number).collect::<Vec<_>>()
        };
        assert_eq!(theirs(&done), theirs(&brought), "in order, and nothing twice");
    }
    done.sort_unstable();
    brought.sort_unstable();
    assert_eq!(done, brought);
}

#[test]
fn no_work_is_lost_of_two() {
    model(|| all_is_done(2, 2, 2));
}

#[test]
fn no_work_is_lost_of_three() {
    model(|| all_is_done(3, 1, 2));
}

#[test]
fn no_work_is_lost_when_there_is_hardly_room() {
    model(|| all_is_done(2, 2, 1));
}

/// A request finds whoever is inside, or nobody, and is followed either way.
fn a_request() {
    let section = Arc::new(Optimistic::new(1, 0).unwrap());
    let follow = |entered: &mut Entered<'_, u64>| {
        let requests = entered.requests();
        *entered.state() += requests;
        true
    };
    let far = section.clone();
    let other = thread::spawn(move || {
        far.request(1);
        far.drive(follow);
    });
    section.drive(follow);
    other.join().unwrap();
    let mut entered = section.try_enter().expect("all have gone");
    assert_eq!((*entered.state(), entered.requests()), (1, 0));
}

#[test]
fn no_request_is_lost() {
    model(a_request);
}

#[test]
fn without_the_leavers_barrier_work_is_lost() {
    without(Barrier::LeaverLooks, || all_is_done(2, 1, 2));
}

#[test]
fn without_the_holders_barrier_work_is_lost() {
    without(Barrier::HolderLooks, || all_is_done(2, 1, 2));
}
