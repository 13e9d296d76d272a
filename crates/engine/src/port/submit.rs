//! Hand-off of packets to the device, and to the queues that sessions have to themselves.

use towpath_device::{DeviceError, Kick, Packet};

use super::DevicePort;
use crate::clock::clock_ns;
use crate::own::OwnQueues;

impl DevicePort {
    /// Gives packets to the device. Returns how many it took, from the front. The device need not
    /// send them before [`DevicePort::kick`].
    ///
    /// # Errors
    /// Fails if the device as a whole fails.
    #[inline]
    pub(crate) fn submit(&mut self, packets: &[Packet<'_>]) -> Result<usize, DeviceError> {
        if !self.own.is_empty() {
            return self.submit_in_runs(packets);
        }
        let taken = self.queue.tx_submit(&mut self.spaces, packets)?;
        self.note_taken(taken);
        self.count_taken(packets, taken);
        Ok(taken)
    }

    /// Notes that the device has new packets of all sessions.
    #[inline]
    fn note_taken(&mut self, taken: usize) {
        self.unkicked[Kick::Tx as usize] |= taken > 0;
        self.watchdog.sent(taken, clock_ns);
    }

    #[inline]
    fn count_taken(&mut self, packets: &[Packet<'_>], taken: usize) {
        self.counts.taken += taken as u64;
        for packet in &packets[..taken] {
            let bytes: u64 = packet.parts.iter().map(|part| u64::from(part.len)).sum();
            self.counts.taken_bytes += bytes;
        }
    }

    /// Gives packets to the queues of their sessions, runs of one queue together.
    fn submit_in_runs(&mut self, packets: &[Packet<'_>]) -> Result<usize, DeviceError> {
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
}
