//! What the clock would have cost while a side slept until it was rung.

use crate::Costs;

/// What the clock would have cost: it ticks after each look that found something, and an empty tick
/// ends it until the next ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Imagined {
    next: Option<u64>,
    found: bool,
    ticks: u64,
    rung: u64,
}

impl Imagined {
    /// Packets came.
    pub(crate) fn came(&mut self, now: u64, interval: u64) {
        while let Some(tick) = self.next.filter(|tick| *tick < now) {
            self.ticks += 1;
            self.next = std::mem::take(&mut self.found).then(|| tick + interval);
        }
        if self.next.is_some() {
            self.found = true;
        } else {
            self.rung += 1;
            self.next = Some(now + interval);
        }
    }

    /// In nanoseconds of processor time.
    pub(crate) fn cost(&self, costs: &Costs) -> u64 {
        self.ticks * costs.tick_cpu + self.rung * costs.wake_up_cpu
    }
}
