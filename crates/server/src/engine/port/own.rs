//! The port's part of the queues that sessions have to themselves.

use std::os::fd::BorrowedFd;

use towpath_device::{DeviceError, HardwareQueue, Packet, Spaces};

use super::DevicePort;
use crate::engine::own::{OwnQueue, OwnQueues};

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

    /// Gives packets to the queues of their sessions, runs of one queue together.
    pub(super) fn submit_in_runs(&mut self, packets: &[Packet<'_>]) -> Result<usize, DeviceError> {
        let own_of = |own: &OwnQueues, packet: &Packet<'_>| {
            packet.parts.first().and_then(|part| own.of_space(part.space))
        };
        let mut done = 0;
        while let Some(first) = packets.get(done) {
            let number = own_of(&self.own, first);
            let rest = &packets[done..];
            let len = rest.iter().take_while(|one| own_of(&self.own, one) == number).count();
            let run = &rest[..len];
            let taken = match number {
                Some(number) => {
                    self.own.submit(number, &mut self.spaces, run)?;
                    len
                }
                None => {
                    let taken = self.queue.tx_submit(&mut self.spaces, run)?;
                    self.note_taken(taken);
                    taken
                }
            };
            self.count_taken(run, taken);
            done += taken;
            if taken < len {
                break;
            }
        }
        Ok(done)
    }

    /// Returns the descriptor that becomes readable when a session's own queue has work.
    pub(crate) fn own_sleep_fd(&self, number: usize) -> Option<BorrowedFd<'_>> {
        self.own.sleep_fd(number)
    }
}
