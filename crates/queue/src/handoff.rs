//! Work that one side hands over to the other side, in numbered slots.
//!
//! Each slot has a line of words that the asking side writes, and a line that the answering side writes:
//!
//! ```text
//! asking side       word 0   the number of the last question   words 1 to 6   its arguments
//! answering side    word 0   the number of the last answer     word 1         the outcome
//! ```
//! The number is stored last. A side that loads it with the acquire order sees the words before it, and all that the
//! other side wrote into memory that belongs to the slot. Both sides are parts of one server, which trust each other.

use crate::ring::{FarMemory, NearMemory};

/// The number of arguments of a question.
pub const ARGUMENTS: usize = 6;
/// The bytes of a slot's words, on each side.
pub const SLOT_BYTES: usize = 64;

const WORD: usize = size_of::<u64>();

/// Asks the question `number` of a slot. Numbers begin with 1, and the next one follows the answer.
pub fn ask(far: &mut impl FarMemory, slot: usize, number: u64, arguments: [u64; ARGUMENTS]) {
    let first = slot * SLOT_BYTES;
    for (index, argument) in arguments.into_iter().enumerate() {
        far.store(first + (1 + index) * WORD, argument);
    }
    // SYNC: the release store of the number pairs with the acquire load of `question`.
    far.store(first, number);
}

/// Returns the number of the last question of a slot, and its arguments.
pub fn question(near: &impl NearMemory, slot: usize) -> (u64, [u64; ARGUMENTS]) {
    let first = slot * SLOT_BYTES;
    let number = near.load(first);
    (number, core::array::from_fn(|index| near.load(first + (1 + index) * WORD)))
}

/// Answers the question `number` of a slot.
pub fn answer(far: &mut impl FarMemory, slot: usize, number: u64, outcome: u64) {
    let first = slot * SLOT_BYTES;
    far.store(first + WORD, outcome);
    // SYNC: the release store of the number pairs with the acquire load of `outcome`.
    far.store(first, number);
}

/// Returns the outcome of the question `number` of a slot; `None` before its answer.
pub fn outcome(near: &impl NearMemory, slot: usize, number: u64) -> Option<u64> {
    let first = slot * SLOT_BYTES;
    (near.load(first) == number).then(|| near.load(first + WORD))
}
