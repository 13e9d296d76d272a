//! Initial sequence numbers (RFC 6528). They advance with the clock, so that a reopened connection
//! starts above the old one's numbers. A secret determines their start.
//!
//! smoltcp draws them from its own generator and accepts no number from outside. The generator
//! (sPCG32) is invertible, so each connection gets the seed from which the generator draws the
//! wanted number. The constants are those of smoltcp's `rand.rs`; a test checks them.

use super::connection::Tuple;
use crate::Instant;
use crate::random::Random;

const MULTIPLIER: u64 = 0xbb2e_fcec_3c39_611d;
const INCREMENT: u64 = 0x7590_ef39;
const INVERSE: u64 = inverse(MULTIPLIER);

/// Computes the inverse of an odd number modulo 2^64, by Newton's method.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut round = 0;
    while round < 6 {
        let error = 2u64.wrapping_sub(odd.wrapping_mul(inverse));
        inverse = inverse.wrapping_mul(error);
        round += 1;
    }
    inverse
}

/// Returns the state before `state`.
fn before(state: u64) -> u64 {
    state.wrapping_sub(INCREMENT).wrapping_mul(INVERSE)
}

/// Returns the number that the generator draws in a state.
fn drawn(state: u64) -> u32 {
    (state >> (29 - (state >> 61))) as u32
}

/// Returns the number for a connection that starts now: the number grows by one every four
/// microseconds, as RFC 9293 3.4.1 recommends.
pub(super) fn initial(now: Instant, random: &Random, tuple: &Tuple) -> u32 {
    ((now.as_micros() / 4) as u32).wrapping_add(random.keyed(tuple) as u32)
}

/// Returns the seed with which an interface of smoltcp gives its first connection this number.
/// `spare` is any random number; the seed contains 29 of its bits.
pub(super) fn seed(initial: u32, spare: u64) -> u64 {
    for attempt in 0..16u64 {
        let state = u64::from(initial) << 29 | (spare.wrapping_add(attempt) & ((1 << 29) - 1));
        let first = before(state);
        // smoltcp uses the first number for packet identifications, which may not be zero, and
        // draws again if it is.
        let identification = drawn(first);
        if (identification ^ (identification >> 16)) as u16 != 0 {
            return before(first);
        }
    }
    spare
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeded_generator_draws_the_wanted_number() {
        for (index, wanted) in [0, 1, 0x8000_0000, u32::MAX, 0x1234_5678].into_iter().enumerate() {
            let mut state = seed(wanted, 0xdead_beef_0000_0000 + index as u64);
            for _ in 0..2 {
                state = state.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT);
            }
            assert_eq!(drawn(state), wanted);
        }
    }
}
