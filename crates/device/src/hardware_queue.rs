//! A hardware queue that changes hands.

use std::any::Any;

/// A hardware queue on its way from the queue that served it to the control part, or back.
pub struct HardwareQueue {
    /// The number of the hardware queue.
    pub number: u32,
    /// The driver's state of the queue. Dropping it may take an RCU grace period.
    state: Box<dyn Any + Send>,
}

impl HardwareQueue {
    /// Creates a hardware queue from its number and the driver's state of it.
    #[must_use]
    pub fn new(number: u32, state: Box<dyn Any + Send>) -> HardwareQueue {
        HardwareQueue { number, state }
    }

    /// Returns the driver's state of the queue.
    #[must_use]
    pub fn into_state(self) -> Box<dyn Any + Send> {
        self.state
    }
}

impl std::fmt::Debug for HardwareQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HardwareQueue").field("number", &self.number).finish_non_exhaustive()
    }
}
