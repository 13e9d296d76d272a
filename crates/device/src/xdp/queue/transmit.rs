//! Packets to send: through the first hardware queue's ring, and large ones through a packet
//! socket.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::{MAX_CALLS_WITHOUT_PROGRESS, PACKET_DESCRIPTORS, XdpQueue};
use crate::check::PacketLimits;
use crate::kernel_interface::packet_sender::Sending;
use crate::xdp::in_flight::Sent;
use crate::xdp::ring::{CONTINUES, Descriptor, HAS_METADATA};
use crate::xdp::socket::{TX_ENTRIES, kick_tx};
use crate::{Completion, DeviceError, Outcome, Packet, Part, Spaces, TX_METADATA_BYTES};

impl XdpQueue {
    /// Puts packets into the transmit ring, and sends large ones.
    pub(super) fn submit(
        &mut self,
        spaces: &Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        // Before the first receive buffer, any memory will do that `descriptors` finds registered.
        let pool = self.pool.or_else(|| Some(packets.first()?.parts.first()?.space));
        let limits = PacketLimits {
            frame_bytes: self.shared.frame_bytes(),
            // Large packets take another way.
            large_bytes: 0,
            ..PacketLimits::of(&self.info, true, pool)
        };
        let mut descriptors = [Descriptor { address: 0, len: 0, options: 0 }; PACKET_DESCRIPTORS];
        let room = self.room();
        let mut taken = 0;
        self.waits_for_kernel = false;
        for packet in packets.iter().take(room) {
            if let Some(local) = &self.shared.host_traffic
                && local.is_for_host(spaces, packet)
            {
                self.counters.system_calls += 1;
                let outcome = match local.send(spaces, packet, &mut self.host_packet) {
                    Some(len) => self.counters.sent(len),
                    None => self.counters.dropped(),
                };
                self.done.push_back(Completion { token: packet.token, outcome });
                taken += 1;
                continue;
            }
            if packet.meta.segmentation.is_some() {
                let Some(outcome) = self.send_large(spaces, packet)? else { break };
                self.done.push_back(Completion { token: packet.token, outcome });
                taken += 1;
                continue;
            }
            let len = limits.len_of(packet);
            let count = len.and_then(|_| self.descriptors(spaces, packet.parts, &mut descriptors));
            if !packet.meta.is_full() {
                descriptors[0].options |= HAS_METADATA;
            }
            let Some((len, count)) = len.zip(count) else {
                self.counters.dropped();
                self.done.push_back(Completion::dropped(packet.token));
                taken += 1;
                continue;
            };
            let tx = &mut self.sockets[0].tx;
            if tx.room(count as u32) < count as u32 || !self.in_flight.has_room(count) {
                break;
            }
            let parts = &descriptors[..count];
            parts.iter().for_each(|one| tx.push(*one));
            self.in_flight.add(packet.token, len as u32, parts.iter().map(|one| one.address));
            taken += 1;
        }
        self.sockets[0].tx.publish();
        Ok(taken)
    }

    /// Splits a packet's parts where chunks end. Returns the number of descriptors; `None` if there
    /// are too many, or a part is not in the registered memory.
    pub(super) fn descriptors(
        &self,
        spaces: &Spaces,
        parts: &[Part],
        out: &mut [Descriptor; PACKET_DESCRIPTORS],
    ) -> Option<usize> {
        let most = if self.lane.binding.spans { PACKET_DESCRIPTORS } else { 1 };
        let headroom = self.info.limits.tx_headroom.bytes().min(TX_METADATA_BYTES) as u64;
        let mut count = 0;
        for part in parts {
            let mut address = spaces.device_address(part.space, part.offset, part.len)?;
            let mut left = u64::from(part.len);
            while left > 0 {
                let now = left.min(self.chunks.room_at(address));
                // The kernel refuses a descriptor without room for metadata in front, whether it
                // has some or not.
                let has_room = self.chunks.has_in_front(address, headroom);
                if count == most || !has_room || !self.chunks.has(address) {
                    return None;
                }
                out[count] = Descriptor { address, len: now as u32, options: CONTINUES };
                count += 1;
                address += now;
                left -= now;
            }
        }
        out[count.checked_sub(1)?].options = 0;
        Some(count)
    }

    /// Makes the kernel take descriptors from the transmit ring. In copy mode, it sends a limited
    /// number of packets per system call.
    pub(super) fn send(&mut self) -> Result<(), DeviceError> {
        let mut fruitless = 0;
        self.unsent = true;
        self.down = false;
        loop {
            let tx = &mut self.sockets[0].tx;
            let left = tx.left();
            if left == 0 || !tx.needs_wakeup() {
                // A driver may stop before the end of the ring, and then asks for another call.
                self.unsent = left > 0;
                return Ok(());
            }
            self.counters.system_calls += 1;
            let outcome = kick_tx(self.sockets[0].fd.as_fd());
            fruitless += u32::from(self.sockets[0].tx.left() == left);
            match outcome {
                // EAGAIN: more than a call sends, or no room for completions or in the socket.
                // ENOBUFS: the interface's queue dropped a packet. EBUSY: the driver works on it.
                // ENOMEM: no memory for a packet now.
                Ok(())
                | Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::BUSY | Errno::INTR) => {
                    if fruitless >= MAX_CALLS_WITHOUT_PROGRESS {
                        return Ok(());
                    }
                }
                // The interface is down: the ring keeps the packets until it is up.
                Err(Errno::NETDOWN) => {
                    self.down = true;
                    return Ok(());
                }
                Err(errno) => return Err(self.failure("sendto", errno.into())),
            }
        }
    }

    /// Sends a large packet after all packets before it. `None` if the kernel has no room for it or
    /// them now.
    pub(super) fn send_large(
        &mut self,
        spaces: &Spaces,
        packet: &Packet<'_>,
    ) -> Result<Option<Outcome>, DeviceError> {
        self.sockets[0].tx.publish();
        if self.sockets[0].tx.left() > 0 {
            self.send()?;
        }
        if self.sockets[0].tx.left() > 0 {
            self.waits_for_kernel = true;
            return Ok(None);
        }
        let Some(sender) = &self.lane.large else { return Ok(Some(self.counters.dropped())) };
        self.counters.system_calls += 1;
        self.down = false;
        match sender.send(spaces, packet) {
            Ok(Sending::Sent(len)) => Ok(Some(self.counters.sent(len))),
            Ok(Sending::Dropped) => Ok(Some(self.counters.dropped())),
            Ok(Sending::Later { down }) => {
                (self.down, self.waits_for_kernel) = (down, true);
                Ok(None)
            }
            Err(cause) => Err(self.failure("writev", cause)),
        }
    }

    /// Moves the kernel's completions to `done`.
    pub(super) fn fetch_completions(&mut self) {
        for socket in &mut self.sockets {
            let available = socket.completion.available(TX_ENTRIES);
            for ahead in 0..available {
                let address = socket.completion.peek(ahead);
                if let Some(Sent { token, len }) = self.in_flight.complete(address) {
                    let outcome = self.counters.sent(len as usize);
                    self.done.push_back(Completion { token, outcome });
                }
            }
            if available > 0 {
                socket.completion.take(available);
                socket.completion.release();
            }
        }
    }

    /// Returns the number of packets that the driver takes before the engine fetches completions.
    pub(super) fn room(&self) -> usize {
        (TX_ENTRIES as usize).saturating_sub(self.in_flight.len() + self.done.len())
    }
}
