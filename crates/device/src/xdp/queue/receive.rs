//! Received packets: from the hardware queues' rings, and from the packet socket's.

use std::os::fd::AsFd;

use super::chunks::Holder;
use super::{XdpQueue, kick_rx};
use crate::kernel_interface::packet_ring::{Copied, Target};
use crate::xdp::offload::{self, BEGINNING_BYTES};
use crate::xdp::ring::CONTINUES;
use crate::{Meta, Received, SpaceId, Spaces};

impl XdpQueue {
    /// Appends packets of one hardware queue to `out`. Returns how many, dropped ones included.
    pub(super) fn poll_socket(
        &mut self,
        index: usize,
        spaces: &Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> usize {
        let Some(pool) = self.pool else { return 0 };
        let mut count = 0;
        while count < budget {
            let available = self.sockets[index].rx.available(1);
            if available == 0 {
                break;
            }
            let rx = &self.sockets[index].rx;
            let ends = |ahead: &u32| rx.peek(*ahead).options & CONTINUES == 0;
            // The kernel publishes a packet's descriptors together, in copy mode.
            let Some(last) = (0..available).find(ends) else { break };
            count += 1;
            self.full_rings.add_buffers(last);
            self.take_packet(index, last + 1, pool, spaces, out);
        }
        count
    }

    /// Gives the slots of received packets back to the kernel. The caller does this only once the engine
    /// has handled the packets: if the server is killed before, its successor receives them again.
    pub(super) fn release_received(&mut self) {
        for socket in &mut self.sockets {
            socket.rx.release();
            if socket.dropped.is_empty() {
                continue;
            }
            // The ring has room, since the kernel took its entries for these buffers. Should it have
            // none, the others wait here.
            while socket.fill.room(1) > 0 {
                let Some(buffer) = socket.dropped.pop() else { break };
                socket.fill.push(u64::from(buffer));
            }
            socket.fill.publish();
        }
    }

    /// Appends packets from an earlier server's sockets to `out`. Returns how many, dropped ones
    /// included.
    #[cold]
    pub(super) fn poll_left_packets(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> usize {
        let Some(pool) = self.pool else { return 0 };
        let most = self.info.limits.rx_buffer_bytes - self.info.limits.rx_headroom_bytes;
        let mut count = 0;
        while count < budget {
            let wanted = self.left_packets.front().map_or(0, |packet| packet.len().div_ceil(most));
            if wanted > self.packet_socket_buffers.len() {
                break;
            }
            let Some(packet) = self.left_packets.pop_front() else { break };
            count += 1;
            self.take_waiting(&packet, pool, spaces, out);
        }
        if self.left_packets.is_empty() && self.packet_ring.is_none() {
            self.give_buffers_to_first_socket();
        }
        count
    }

    /// Copies a packet into buffers, and appends them to `out`, unless it is dropped.
    fn take_waiting(
        &mut self,
        packet: &[u8],
        pool: SpaceId,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
    ) {
        let from = out.len();
        let limits = &self.info.limits;
        let to = Target { pool, buffers: &mut self.packet_socket_buffers, limits, mac: None };
        let len = Copied { bytes: packet, meta: Meta::FULL, tag: None }.copy(spaces, &to, out);
        let parts = out.len() - from;
        let is_whole = len > 0 && parts <= limits.rx_packet_buffers;
        let meta = self.meta_of(&out[from..], len, spaces).filter(|_| is_whole);
        let Some(meta) = meta else {
            self.counters.rx_dropped += 1;
            out.truncate(from);
            return;
        };
        out[from].meta = meta;
        for part in &out[from..] {
            self.chunks.take(part.buffer);
        }
        self.packet_socket_buffers.drain(..parts);
        self.counters.received(len);
    }

    /// Gives the first socket the buffers that were for the packets of an earlier server.
    fn give_buffers_to_first_socket(&mut self) {
        let Some(socket) = self.sockets.first_mut() else { return };
        while socket.fill.room(1) > 0
            && let Some(buffer) = self.packet_socket_buffers.pop_front()
            && let Some(chunk) = self.chunks.at(buffer)
        {
            socket.fill.push(u64::from(buffer));
            socket.held += 1;
            self.chunks.set(chunk, Holder::Socket(socket.hardware));
        }
        socket.fill.publish();
    }

    /// Takes a packet of so many descriptors off a receive ring. Appends its buffers to `out`, or
    /// gives them back to the device if the packet is dropped.
    pub(super) fn take_packet(
        &mut self,
        index: usize,
        descriptors: u32,
        pool: SpaceId,
        spaces: &Spaces,
        out: &mut Vec<Received>,
    ) {
        let from = out.len();
        let (mut len, mut good) = (0, true);
        for ahead in 0..descriptors {
            let one = self.sockets[index].rx.peek(ahead);
            // The kernel returns only buffers that it got; all else is a fault of a driver.
            let Some((chunk, offset)) = self.chunks.received(one.address) else {
                good = false;
                continue;
            };
            let buffer = self.chunks.offset(chunk);
            let mut part = Received::whole(pool, buffer, offset, one.len, Meta::FULL);
            part.continues = ahead + 1 < descriptors;
            len += one.len as usize;
            out.push(part);
        }
        self.sockets[index].rx.take(descriptors);
        good &= descriptors as usize <= self.info.limits.rx_packet_buffers && out.len() > from;
        let meta = if good { self.meta_of(&out[from..], len, spaces) } else { None };
        if let Some(meta) = meta {
            out[from].meta = meta;
            for part in &out[from..] {
                self.chunks.take(part.buffer);
            }
            self.sockets[index].held -= descriptors;
            self.counters.received(len);
            return;
        }
        self.counters.rx_dropped += 1;
        // A buffer must not be in two rings: the next server would give it to two packets.
        self.sockets[index].dropped.extend(out.drain(from..).map(|part| part.buffer));
    }

    /// Returns the metadata of a packet; `None` for one to drop.
    pub(super) fn meta_of(&self, parts: &[Received], len: usize, spaces: &Spaces) -> Option<Meta> {
        let frame_bytes = self.shared.frame_bytes();
        if !self.shared.may_be_partial() {
            return (len <= frame_bytes).then_some(Meta::FULL);
        }
        let first = parts.first()?;
        let mut beginning = [0; BEGINNING_BYTES];
        let beginning = &mut beginning[..BEGINNING_BYTES.min(first.len as usize)];
        spaces.copy_out(first.space, first.offset, beginning).ok()?;
        offload::meta(beginning, len, frame_bytes)
    }

    /// Appends packets of the groups' ring to `out`, or of this host's own sockets if
    /// `is_from_host`. Returns how many, dropped ones included.
    pub(super) fn poll_packet_socket(
        &mut self,
        is_from_host: bool,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> usize {
        let ring = if is_from_host { &mut self.host_ring } else { &mut self.packet_ring };
        let (Some(ring), Some(pool)) = (ring, self.pool) else { return 0 };
        let mut target = Target {
            pool,
            buffers: &mut self.packet_socket_buffers,
            limits: &self.info.limits,
            // The loopback interface has no MAC addresses.
            mac: is_from_host.then_some(self.info.mac),
        };
        let from = out.len();
        let count = ring.poll(spaces, &mut target, out, budget, &mut self.counters);
        for part in &out[from..] {
            self.chunks.take(part.buffer);
        }
        count
    }

    /// Tells drivers that wait for receive buffers that there are some.
    pub(super) fn wake_receivers(&mut self) {
        for socket in &self.sockets {
            if socket.fill.needs_wakeup() {
                self.counters.system_calls += 1;
                kick_rx(socket.fd.as_fd());
            }
        }
    }
}
