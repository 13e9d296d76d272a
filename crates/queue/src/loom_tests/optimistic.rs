//! The section for which no thread waits: the holders do all work, once and in order.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

use super::{model, without};
use crate::optimistic::{Entered, Left, Optimistic};
use crate::word::Barrier;

/// The state is the list of work done. Each slot holds one value twice: in `memory`, and in the
/// section's own memory, where the model checks that each slot has one taker.
type Section = Optimistic<Vec<u64>, u64>;

fn slots(count: usize) -> Arc<Vec<AtomicU64>> {
    Arc::new((0..count).map(|_| AtomicU64::new(0)).collect())
}

fn do_what_was_left(entered: &mut Entered<'_, Vec<u64>, u64>, memory: &[AtomicU64]) -> bool {
    while let Some(slot) = entered.take() {
        let value = memory[slot as usize].load(Ordering::Relaxed);
        entered.state().push(value);
        entered.release(slot);
    }
    true
}

/// Does a piece of work or leaves it. Returns `false` if there was no free slot.
fn bring(section: &Section, memory: &[AtomicU64], value: u64) -> bool {
    if let Some(mut entered) = section.try_enter() {
        do_what_was_left(&mut entered, memory);
        let mut brought = true;
        if entered.is_nothing_left() {
            entered.state().push(value);
        } else if let Some(mut leaving) = entered.leave() {
            leaving.write(|own| *own = value);
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
    let Some(mut leaving) = section.leave() else { return false };
    leaving.write(|own| *own = value);
    memory[leaving.slot() as usize].store(value, Ordering::Relaxed);
    leaving.publish();
    section.drive(|entered| do_what_was_left(entered, memory));
    true
}

/// Several threads bring work. After all threads have ended, all work is done, each thread's in its
/// order. At every access of the state the model checks that only one thread is inside.
fn all_is_done(threads: u64, each: u64, room: u32) {
    let section = Arc::new(Section::with_memory(vec![0; room as usize], Vec::new()).unwrap());
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
    let mut entered = section.try_enter().expect("all threads have left");
    assert!(entered.is_nothing_left(), "work was left that no thread did");
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
    without(Barrier::LeaverChecks, || all_is_done(2, 1, 2));
}

#[test]
fn without_the_holders_barrier_work_is_lost() {
    without(Barrier::HolderChecks, || all_is_done(2, 1, 2));
}
