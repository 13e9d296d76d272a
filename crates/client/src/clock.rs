//! The clock of deadlines and pauses.

use std::time::Instant;

/// Returns the time: the monotonic clock's, and in a simulation the simulation's.
#[inline]
pub(crate) fn now() -> Instant {
    #[cfg(towpath_simulation)]
    {
        towpath_queue::simulation::instant()
    }
    #[cfg(not(towpath_simulation))]
    Instant::now()
}
