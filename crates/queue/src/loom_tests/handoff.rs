//! Handed-over work: each side sees what the other side wrote before it.

use loom::thread;

use super::{Bell, model};
use crate::handoff::{ARGUMENTS, answer, ask, outcome, question};
use crate::test_memory::Memory;
use crate::test_ring::{RingFar, RingNear};

/// The words of one slot on a side, and one word of the memory that belongs to it.
const WORDS: usize = 8;

/// The asking side hands over a word and an argument, and gets their sum back in the word, twice. `answers_first`: the
/// answering side makes the mistake to answer before it writes the sum.
fn sum(answers_first: bool) {
    let (asking, answering) = (Memory::new(WORDS), Memory::new(WORDS));
    let (handed, returned) = (Memory::new(1), Memory::new(1));
    let bells = [Bell::new(), Bell::new()];
    let (near, mut far) = (RingNear(asking.peer()), RingFar(answering.own()));
    let (from, mut to) = (handed.peer(), returned.own());
    let worker = thread::spawn(move || {
        for turn in 1..=2 {
            let arguments = loop {
                let (number, arguments) = question(&near, 0);
                if number == turn {
                    break arguments;
                }
                bells[0].sleep();
            };
            let sum = from.fetch(0) + arguments[ARGUMENTS - 1];
            if answers_first {
                answer(&mut far, 0, turn, 7);
            }
            to.store(0, sum);
            if !answers_first {
                answer(&mut far, 0, turn, 7);
            }
            bells[1].notify();
        }
    });
    let (near, mut far) = (RingNear(answering.peer()), RingFar(asking.own()));
    let (mut word, sum) = (handed.own(), returned.peer());
    for turn in 1..=2 {
        word.store(0, turn);
        ask(&mut far, 0, turn, [10 * turn; ARGUMENTS]);
        bells[0].notify();
        while outcome(&near, 0, turn).is_none() {
            bells[1].sleep();
        }
        assert_eq!((outcome(&near, 0, turn), sum.fetch(0)), (Some(7), 11 * turn));
    }
    worker.join().unwrap();
}

#[test]
fn each_side_sees_what_was_handed_over() {
    model(|| sum(false));
}

/// An answer before the result.
#[test]
fn an_early_answer_is_found() {
    let found = std::panic::catch_unwind(|| model(|| sum(true)));
    assert!(found.is_err(), "loom found nothing wrong");
}
