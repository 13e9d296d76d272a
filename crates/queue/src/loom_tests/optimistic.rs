//! The section for which no thread waits: the holders do all work, once and in order.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::{Bell, model, without};
use crate::optimistic::{Entered, Left, Optimistic};
use crate::word::Barrier;

/// The work done, and the slots of work that a device has taken and not fetched.
#[derive(Default)]
struct Done {
    list: Vec<u64>,
    /// Each slot, and the index of its work in `list`.
    in_flight: Vec<(u32, usize)>,
}

/// Each slot holds one value twice: in `memory`, and in the section's own memory, where the model
/// checks that each slot has one taker.
type Section = Optimistic<Done, u64>;
type Inside<'a> = Entered<'a, Done, u64>;
/// The way in which a holder does what other threads left.
type Work = fn(&mut Inside<'_>, &[AtomicU64]) -> bool;

fn slots(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

fn do_what_was_left(entered: &mut Inside<'_>, memory: &[AtomicU64]) -> bool {
    while let Some(slot) = entered.take() {
        let value = memory[slot as usize].load(Ordering::Relaxed);
        entered.state().list.push(value);
        entered.release(slot);
    }
    true
}

/// Hands what was left to a device that fetches it during the next call, perhaps by another thread,
/// which then releases the slot.
fn hand_over_what_was_left(entered: &mut Inside<'_>, memory: &[AtomicU64]) -> bool {
    for (slot, index) in core::mem::take(&mut entered.state().in_flight) {
        entered.state().list[index] = memory[slot as usize].load(Ordering::Relaxed);
        entered.release(slot);
    }
    while let Some(slot) = entered.take() {
        let state = entered.state();
        state.in_flight.push((slot, state.list.len()));
        state.list.push(u64::MAX);
    }
    true
}

/// Does a piece of work or leaves it. Returns `false` if there was no free slot.
fn bring(section: &Section, memory: &[AtomicU64], value: u64, work: Work) -> bool {
    if let Some(mut entered) = section.try_enter() {
        work(&mut entered, memory);
        let mut brought = true;
        if entered.is_nothing_left() {
            entered.state().list.push(value);
        } else if let Some(mut leaving) = entered.leave() {
            leaving.write(|own| *own = value);
            memory[leaving.slot() as usize].store(value, Ordering::Relaxed);
            leaving.publish();
            work(&mut entered, memory);
        } else {
            brought = false;
        }
        if entered.exit() != Left::Nothing {
            section.drive(|entered| work(entered, memory));
        }
        return brought;
    }
    let Some(mut leaving) = section.leave() else { return false };
    leaving.write(|own| *own = value);
    memory[leaving.slot() as usize].store(value, Ordering::Relaxed);
    leaving.publish();
    section.drive(|entered| work(entered, memory));
    true
}

/// Several threads bring work. After all threads have ended, all work is done, each thread's in its
/// order. At every access of the state the model checks that only one thread is inside.
fn all_is_done(threads: u64, each: u64, room: u32, work: Work) {
    let section = Arc::new(Section::with_memory(vec![0; room as usize], Done::default()).unwrap());
    let memory = slots(room as usize);
    let mut brought = Vec::new();
    let others: Vec<_> = (1..threads)
        .map(|number| {
            let (section, memory) = (section.clone(), memory.clone());
            thread::spawn(move || {
                let all = (0..each).map(|one| number << 8 | one);
                all.filter(|value| bring(&section, &memory, *value, work)).collect::<Vec<_>>()
            })
        })
        .collect();
    brought.extend((0..each).filter(|value| bring(&section, &memory, *value, work)));
    for other in others {
        brought.extend(other.join().unwrap());
    }
    let mut entered = section.try_enter().expect("all threads have left");
    assert!(entered.is_nothing_left(), "work was left that no thread did");
    work(&mut entered, &memory);
    let mut done = core::mem::take(&mut entered.state().list);
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
    model(|| all_is_done(2, 2, 2, do_what_was_left));
}

#[test]
fn no_work_is_lost_of_three() {
    model(|| all_is_done(3, 1, 2, do_what_was_left));
}

#[test]
fn no_work_is_lost_when_there_is_hardly_room() {
    model(|| all_is_done(2, 2, 1, do_what_was_left));
}

#[test]
fn no_work_is_lost_when_a_later_holder_completes_it() {
    model(|| all_is_done(2, 2, 1, hand_over_what_was_left));
}

/// A thread leaves a request while another thread is inside, or none. One of them carries it out.
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
    let mut entered = section.try_enter().expect("all threads have left");
    assert_eq!((*entered.state(), entered.requests()), (1, 0));
}

#[test]
fn no_request_is_lost() {
    model(a_request);
}

#[test]
fn without_the_leavers_barrier_work_is_lost() {
    without(Barrier::LeaverChecks, || all_is_done(2, 1, 2, do_what_was_left));
}

#[test]
fn without_the_holders_barrier_work_is_lost() {
    without(Barrier::HolderChecks, || all_is_done(2, 1, 2, do_what_was_left));
}

/// Moves what was left out of the slots' own memory, as a reader of packets does.
fn move_what_was_left(entered: &mut Inside<'_>, _: &[AtomicU64]) -> bool {
    while let Some(slot) = entered.take() {
        let value = entered.with_slot(slot, core::mem::take).expect("the slot is taken");
        entered.state().list.push(value);
        entered.release(slot);
    }
    true
}

#[test]
fn no_work_is_lost_when_the_holder_takes_the_slots_memory() {
    model(|| all_is_done(2, 2, 1, move_what_was_left));
}

/// A reader, whose flag is set while it looks for packets and says that it will sleep.
#[derive(Default)]
struct Reader {
    packets: Vec<u64>,
    sleeps: bool,
}

/// Takes the packets that were deferred, and notifies the reader once if it sleeps.
fn accept(entered: &mut Entered<'_, Reader, u64>, bell: &Bell) -> bool {
    while let Some(slot) = entered.take() {
        let value = entered.with_slot(slot, core::mem::take).expect("the slot is taken");
        entered.state().packets.push(value);
        entered.release(slot);
    }
    notify_reader(entered.state(), bell);
    true
}

fn notify_reader(reader: &mut Reader, bell: &Bell) {
    if !reader.packets.is_empty() && core::mem::take(&mut reader.sleeps) {
        bell.notify();
    }
}

/// One thread delivers packets, and defers those that come while the reader has its flag set; the
/// reader sleeps while there is no packet. It gets all packets, in order.
fn deferred_packets_wake_the_reader(packets: u64) {
    let section = Arc::new(Optimistic::with_memory(vec![0; 2], Reader::default()).unwrap());
    let bell = Bell::new();
    let delivering = section.clone();
    let deliverer = thread::spawn(move || {
        for value in 1..=packets {
            if let Some(mut entered) = delivering.try_enter() {
                accept(&mut entered, bell);
                entered.state().packets.push(value);
                notify_reader(entered.state(), bell);
                if entered.exit() != Left::Nothing {
                    delivering.drive(|entered| accept(entered, bell));
                }
            } else {
                let mut leaving = delivering.leave().expect("a slot for each packet");
                leaving.write(|memory| *memory = value);
                leaving.publish();
                delivering.drive(|entered| accept(entered, bell));
            }
        }
    });
    let mut read = Vec::new();
    while read.len() < packets as usize {
        let Some(mut entered) = section.try_enter() else {
            thread::yield_now();
            continue;
        };
        accept(&mut entered, bell);
        let got = core::mem::take(&mut entered.state().packets);
        entered.state().sleeps = got.is_empty();
        let has_to_sleep = got.is_empty();
        read.extend(got);
        if entered.exit() != Left::Nothing {
            section.drive(|entered| accept(entered, bell));
        }
        if has_to_sleep {
            bell.sleep();
        }
    }
    deliverer.join().unwrap();
    assert_eq!(read, (1..=packets).collect::<Vec<_>>());
}

#[test]
fn no_deferred_packet_and_no_wake_up_of_a_reader_is_lost() {
    model(|| deferred_packets_wake_the_reader(2));
}

#[test]
fn without_the_leavers_barrier_a_reader_sleeps_for_ever() {
    without(Barrier::LeaverChecks, || deferred_packets_wake_the_reader(1));
}

#[test]
fn without_the_holders_barrier_a_reader_sleeps_for_ever() {
    without(Barrier::HolderChecks, || deferred_packets_wake_the_reader(1));
}

/// The state of a driver whose interrupt a thread handles: packets that the device has, and whether
/// the device interrupts for the next one.
#[derive(Default)]
struct Card {
    handled: u64,
    is_unmasked: bool,
}

/// A device that masks its interrupt with each one, until the driver unmasks it.
struct Wire {
    /// The packets that arrived, and whether the interrupt is unmasked.
    state: loom::sync::Mutex<(u64, bool)>,
    bell: &'static Bell,
}

impl Wire {
    fn packet(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        if core::mem::take(&mut state.1) {
            self.bell.notify();
        }
    }

    /// Unmasks the interrupt. Returns the packets that arrived so far; with new ones, the interrupt
    /// comes at once.
    fn unmask(&self, handled: u64) -> u64 {
        let mut state = self.state.lock().unwrap();
        state.1 = state.0 == handled;
        state.0
    }
}

/// Does the work of an interrupt that was left, and unmasks the interrupt.
fn handle(entered: &mut Entered<'_, Card>, wire: &Wire) -> bool {
    if entered.requests() != 0 {
        let card = entered.state();
        loop {
            let arrived = wire.unmask(card.handled);
            if arrived == card.handled {
                break;
            }
            card.handled = arrived;
        }
        card.is_unmasked = true;
        if card.handled == 1 {
            // The thread that left its work learns that all is done.
            wire.bell.notify();
        }
    }
    true
}

/// A thread sends, and meanwhile holds the section; another one handles the interrupt of one
/// packet. It leaves its work to the sender and sleeps. The sender does the work and unmasks the
/// interrupt, so that the thread wakes for the packet.
fn an_interrupts_work_is_left() {
    let section = Arc::new(Optimistic::new(1, Card::default()).unwrap());
    let wire = Arc::new(Wire { state: loom::sync::Mutex::new((0, false)), bell: Bell::new() });
    let (sending, far) = (section.clone(), wire.clone());
    let sender = thread::spawn(move || {
        if let Some(entered) = sending.try_enter() {
            far.packet();
            if entered.exit() != Left::Nothing {
                sending.drive(|entered| handle(entered, &far));
            }
        } else {
            far.packet();
        }
    });
    section.request(1);
    section.drive(|entered| handle(entered, &wire));
    // The interrupt, or the thread that did the work. A lost one is a deadlock.
    wire.bell.sleep();
    section.request(1);
    section.drive(|entered| handle(entered, &wire));
    sender.join().unwrap();
    let mut entered = section.try_enter().expect("all threads have left");
    assert!(entered.state().is_unmasked);
    assert_eq!((entered.requests(), entered.state().handled), (0, 1));
}

#[test]
fn no_interrupts_work_and_no_wake_up_is_lost() {
    model(an_interrupts_work_is_left);
}

#[test]
fn without_the_leavers_barrier_an_interrupts_work_is_lost() {
    without(Barrier::LeaverChecks, an_interrupts_work_is_left);
}

#[test]
fn without_the_holders_barrier_an_interrupts_work_is_lost() {
    without(Barrier::HolderChecks, an_interrupts_work_is_left);
}
