//! The monotonic clock.

use rustix::event::Timespec;
#[cfg(not(towpath_simulation))]
use rustix::time::{ClockId, clock_gettime};

/// Returns the monotonic clock's time, in nanoseconds.
pub fn clock_ns() -> u64 {
    #[cfg(towpath_simulation)]
    {
        towpath_queue::simulation::pass(towpath_queue::simulation::Point::Clock);
        towpath_queue::simulation::now()
    }
    #[cfg(not(towpath_simulation))]
    monotonic_ns()
}

#[cfg(not(towpath_simulation))]
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns a duration in nanoseconds as the kernel takes it.
pub(crate) fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}
