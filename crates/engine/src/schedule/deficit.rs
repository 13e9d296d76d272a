//! Shares in bytes, by weight: deficit round robin (Shreedhar and Varghese, "Efficient fair queuing
//! using deficit round robin"). This is the form called surplus round robin: a unit may overdraw
//! its account by its last packet and pays with its next rounds. The scheduler therefore need not
//! know a packet's length before the engine takes it.

use crate::schedule::policy::{Account, Policy};

/// Bytes that each round gives per unit of weight. An endpoint of the default weight, 100, sends
/// 12 800 bytes before the next one: eight packets of full length. That is long enough for the
/// processor to wait for their memory together, and at 10 Gbit/s a delay of 10 us.
pub(crate) const QUANTUM_BYTES: i64 = 128;

/// Shares by weight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deficit;

fn quantum(weight: u16) -> i64 {
    QUANTUM_BYTES * i64::from(weight.max(1))
}

impl Policy for Deficit {
    fn packets(&self) -> usize {
        usize::MAX
    }

    fn begin(&self, account: &mut Account, weight: u16) -> i64 {
        if !account.in_turn {
            account.in_turn = true;
            account.bytes += quantum(weight);
        }
        account.bytes
    }

    fn charge(&self, account: &mut Account, bytes: u64) {
        account.bytes -= bytes as i64;
    }

    fn stays_first(&self, account: &Account, _: bool) -> bool {
        account.in_turn && account.bytes > 0
    }

    fn rounds(&self, account: &Account, weight: u16) -> i64 {
        if account.bytes > 0 { 0 } else { -account.bytes / quantum(weight) + 1 }
    }

    fn skip(&self, account: &mut Account, weight: u16, rounds: i64) {
        account.bytes += quantum(weight) * rounds;
    }
}
