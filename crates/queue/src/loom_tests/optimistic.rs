//! The section for which no thread waits: the holders do all work, once and in order.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::{model, without};
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
