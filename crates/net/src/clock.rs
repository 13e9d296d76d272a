//! The clock of the stack.

use std::time::Instant as StdInstant;

use towpath_stack::Instant;

/// A clock that counts from its creation.
pub(crate) struct Clock(StdInstant);

impl Clock {
    pub(crate) fn new() -> Self {
        Clock(StdInstant::now())
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_micros(
            1 + u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX - 1),
        )
    }
}
