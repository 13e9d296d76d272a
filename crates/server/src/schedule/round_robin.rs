//! One after the other, each so many packets: who sends long ones gets more.

use crate::schedule::{Account, Policy};

/// Turns of a number of packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundRobin {
    /// Packets of a turn.
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

    fn goes_on(&self, _: &Account, blocked_at_once: bool) -> bool {
        // Who found no room for anything stays first: nobody whose packets are smaller is always
        // before it.
        blocked_at_once
    }

    fn rounds(&self, _: &Account, _: u16) -> i64 {
        0
    }

    fn skip(&self, _: &mut Account, _: u16, _: i64) {}
}
