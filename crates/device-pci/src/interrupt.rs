//! The interrupt of a queue, on which its engine sleeps.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The interrupt of a queue.
#[derive(Debug)]
pub(crate) struct Interrupt {
    /// The kernel signals it at each interrupt of the queue.
    event: Arc<OwnedFd>,
    /// `true` if the queue has been armed since the last read.
    is_armed: bool,
}

impl Interrupt {
    pub(crate) fn new(event: Arc<OwnedFd>) -> Interrupt {
        Interrupt { event, is_armed: false }
    }

    /// Returns the descriptor that is readable after an interrupt.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Notes that the device may interrupt from now on.
    pub(crate) fn arm(&mut self) {
        self.is_armed = true;
    }

    /// Takes the interrupts so far. Returns the number of system calls.
    pub(crate) fn take(&mut self) -> u64 {
        if !std::mem::take(&mut self.is_armed) {
            return 0;
        }
        // The read fails if there was no interrupt.
        let _ = rustix::io::read(&*self.event, &mut [0; 8]);
        1
    }
}
