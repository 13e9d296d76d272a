//! The port's part of the queues that sessions have to themselves.

use std::os::fd::BorrowedFd;

use towpath_device::{HardwareQueue, Spaces};

use super::DevicePort;
use crate::own::{OwnQueue, OwnQueues};

impl DevicePort {
    /// Removes a session's own queue, of which no packet is in flight.
    pub(crate) fn remove_own(&mut self, number: usize) -> Option<OwnQueue> {
        self.own.remove(number)
    }

    /// Returns the sessions' own queues, with the data spaces.
    pub(crate) fn own(&mut self) -> (&mut OwnQueues, &mut Spaces) {
        (&mut self.own, &mut self.spaces)
    }

    /// Stops serving a hardware queue; see [`DeviceQueue::cede`].
    pub(crate) fn cede(&mut self, hardware: u32) -> Option<HardwareQueue> {
        self.queue.cede(hardware)
    }

    /// Serves a hardware queue again; see [`DeviceQueue::restore`].
    pub(crate) fn restore(&mut self, queue: HardwareQueue, buffers: &mut Vec<u32>) {
        self.queue.restore(queue, buffers);
    }

    /// Returns the descriptor that becomes readable when a session's own queue has work.
    pub(crate) fn own_sleep_fd(&self, number: usize) -> Option<BorrowedFd<'_>> {
        self.own.sleep_fd(number)
    }
}
