//! The clock of the stack.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant as StdInstant;

use towpath_stack::Instant;

/// A clock that counts from its creation.
pub(crate) struct Clock {
    start: StdInstant,
    /// The microseconds by which it is ahead of the machine's, if the network is one for tests.
    ahead: Option<Arc<AtomicU64>>,
}

impl Clock {
    pub(crate) fn new(ahead: Option<Arc<AtomicU64>>) -> Self {
        Clock { start: StdInstant::now(), ahead }
    }

    pub(crate) fn now(&self) -> Instant {
        let elapsed = u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX);
        let ahead = self.ahead.as_ref().map_or(0, |ahead| ahead.load(Ordering::SeqCst));
        Instant::from_micros(elapsed.saturating_add(ahead).clamp(1, u64::MAX - 1))
    }
}
