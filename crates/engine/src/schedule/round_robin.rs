//! Round robin: each unit sends a fixed number of packets per turn, so a unit with long packets
//! gets more bytes.

use crate::schedule::policy::{Account, Policy};

/// Turns of a fixed number of packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundRobin {
    /// Packets per turn.
    pub packets: usize,
}

impl Policy for RoundRobin {
    fn packets(&self) -> usize {
        self.packets
    }

    fn begin(&self, _: &mut Account, _: u16) -> i64 {
        i64::MAX
    }

    fn charge(&self, _: &mut Account, _: u64) {}

    fn stays_first(&self, _: &Account, blocked_at_once: bool) -> bool {
        // A unit that found no room for any packet stays first; otherwise units with smaller
        // packets would always precede it.
        blocked_at_once
    }

    fn rounds(&self, _: &Account, _: u16) -> i64 {
        0
    }

    fn skip(&self, _: &mut Account, _: u16, _: i64) {}
}
