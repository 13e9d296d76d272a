//! One side of a comparison.

use towpath_client::{Setting, WaitStrategy};

/// The paper's window; shorter ones are scaled to it.
pub(super) const WINDOW_S: f64 = 5.0;
/// Frames per second when savings are compared.
pub(super) const RATE: u32 = 10_000;

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Way {
    /// The number of frames of a burst.
    pub(super) burst: u32,
    /// The number of them that the application flushes together, with at most one notification.
    pub(super) flushed: u32,
    /// Settings of the device and of the application's endpoint.
    pub(super) settings: Vec<(Setting, u64)>,
    /// The application's wait strategy.
    pub(super) waiting: WaitStrategy,
}

impl Way {
    /// Returns a notification for each frame, with all sides asleep when idle.
    pub(super) fn plain() -> Way {
        Way { burst: 1, flushed: 1, settings: Vec::new(), waiting: WaitStrategy::Block }
    }

    /// Sends this many frames at once, and flushes them together.
    pub(super) fn bursts(burst: u32) -> Way {
        Way { burst, flushed: burst, ..Way::plain() }
    }

    pub(super) fn with(mut self, setting: Setting, value: u64) -> Way {
        self.settings.push((setting, value));
        self
    }
}
