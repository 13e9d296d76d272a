//! The clock's cost for the packets that came while a side slept until notifications.

use crate::Costs;

/// The cost that a clock would have had. The clock ticks after each poll that found work, and an
/// empty tick stops it until the next notification.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Imagined {
    next: Option<u64>,
    found: bool,
    ticks: u64,
    blocked: u64,
}

impl Imagined {
    /// Notes that packets came.
    pub(crate) fn came(&mut self, now: u64, interval: u64) {
        while let Some(tick) = self.next.filter(|tick| *tick < now) {
            self.ticks += 1;
            self.next = std::mem::take(&mut self.found).then(|| tick + interval);
        }
        if self.next.is_some() {
            self.found = true;
        } else {
            self.blocked += 1;
            self.next = Some(now + interval);
        }
    }

    /// Returns the cost in nanoseconds of processor time.
    pub(crate) fn cost(&self, costs: &Costs) -> u64 {
        self.ticks * costs.tick_cpu + self.blocked * costs.wake_up_cpu
    }
}
