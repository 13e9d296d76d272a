//! The device verbs of a queue, its sleep and its reset.

use std::os::fd::{AsFd, BorrowedFd};

use super::chunks::Holder;
use super::{PACKET_DESCRIPTORS, PACKET_SOCKET_BUFFERS, XdpQueue, kick_rx};
use crate::kernel_interface::packet_ring::PacketRing;
use crate::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, HardwareQueue, Kick, Packet, Received,
    SpaceId, Spaces,
};

impl XdpQueue {
    /// Returns `true` if there is something to do right now.
    fn has_work(&mut self, tx_waiting: bool) -> bool {
        let has_room = self.room() > 0
            && self.in_flight.has_room(PACKET_DESCRIPTORS)
            && self.sockets[0].tx.room(PACKET_DESCRIPTORS as u32) >= PACKET_DESCRIPTORS as u32;
        let has_copied = || {
            self.packet_ring.iter().chain(&self.host_ring).any(PacketRing::is_ready)
                && !self.packet_socket_buffers.is_empty()
        };
        !self.left_packets.is_empty()
            || !self.done.is_empty()
            || tx_waiting && has_room && !self.waits_for_kernel
            || has_copied()
            || self
                .sockets
                .iter_mut()
                .any(|socket| socket.rx.available(1) > 0 || socket.completion.available(1) > 0)
    }
}

/// An engine that ends has handled all packets that it received.
impl Drop for XdpQueue {
    fn drop(&mut self) {
        self.release_received();
    }
}

impl DeviceQueue for XdpQueue {
    fn holds(&self, buffer: u32) -> bool {
        self.chunks.is_held(buffer)
    }

    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.release_received();
        self.pool = Some(space);
        let len = self.info.limits.rx_buffer_bytes as u32;
        let mut taken = 0;
        for buffer in buffers {
            let address = spaces.device_address(space, *buffer, len);
            // Only the kernel writes the buffers of a session here, and so no region is there.
            let good = address == Some(u64::from(*buffer))
                && self.info.limits.is_aligned(*buffer)
                && (self.lane.own.is_some() || spaces.is_writable(space, *buffer, len));
            let Some(chunk) = self.chunks.of_engine(*buffer).filter(|_| good) else { break };
            let holder = if (self.packet_ring.is_some() || !self.left_packets.is_empty())
                && self.packet_socket_buffers.len() < PACKET_SOCKET_BUFFERS
            {
                self.packet_socket_buffers.push_back(*buffer);
                Holder::Rings
            } else {
                let most = self.most_held;
                let able = self.sockets.iter_mut().filter_map(|socket| {
                    (socket.held < most && socket.fill.room(1) > 0).then_some(socket)
                });
                let Some(socket) = able.min_by_key(|socket| socket.held) else { break };
                socket.fill.push(u64::from(*buffer));
                socket.held += 1;
                Holder::Socket(socket.hardware)
            };
            self.chunks.set(chunk, holder);
            taken += 1;
        }
        if taken > 0 {
            self.sockets.iter_mut().for_each(|socket| socket.fill.publish());
        }
        taken
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        if self.full_rings.polls() {
            self.count_kernel_drops();
        }
        self.release_received();
        self.sleep.polled(&self.sockets, &mut self.counters);
        if !self.left_packets.is_empty() {
            return Ok(self.poll_left_packets(spaces, out, budget));
        }
        let sources = self.sockets.len() + 2;
        let before = self.counters.rx_packets;
        let mut polled = 0;
        for step in 0..sources {
            let source = (self.next_source + step) % sources;
            polled += if source < self.sockets.len() {
                if self.shared.busy_polls() && self.sockets[source].rx.available(1) == 0 {
                    self.counters.system_calls += 1;
                    kick_rx(self.sockets[source].fd.as_fd());
                }
                self.poll_socket(source, spaces, out, budget - polled)
            } else {
                let is_from_host = source > self.sockets.len();
                self.poll_packet_socket(is_from_host, spaces, out, budget - polled)
            };
        }
        self.next_source = (self.next_source + 1) % sources;
        if self.full_rings.polled(polled) {
            self.count_kernel_drops();
        }
        Ok((self.counters.rx_packets - before) as usize)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        self.submit(spaces, packets)
    }

    fn kick(&mut self, _: &mut Spaces, ring: Kick) -> Result<(), DeviceError> {
        match ring {
            Kick::Tx => self.send()?,
            Kick::Rx => self.wake_receivers(),
        }
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        if self.in_flight.len() > 0 {
            self.fetch_completions();
            if self.unsent {
                self.send()?;
            }
        }
        Ok(Completion::take(&mut self.done, out, budget))
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sleep.fd())
    }

    /// Arms the sleep: takes the events so far, and then looks at the rings. In copy mode, the
    /// kernel also reports room in the socket when it completes a packet.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if self.has_work(tx_waiting) {
            return Ok(Armed::Work);
        }
        self.release_received();
        if self.full_rings.sleeps() {
            self.count_kernel_drops();
        }
        self.sleep
            .arm(&self.sockets, &mut self.counters)
            .map_err(|cause| self.failure("epoll", cause))?;
        let waits = self.unsent || tx_waiting && self.waits_for_kernel;
        if waits || self.zero_copy && self.in_flight.len() > 0 {
            self.sleep.set_timer(self.down, &mut self.counters);
        }
        if self.zero_copy {
            self.wake_receivers();
        }
        Ok(if self.has_work(tx_waiting) { Armed::Work } else { Armed::Sleep })
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.counters.resets += 1;
        self.fetch_completions();
        self.count_kernel_drops();
        // From the last close on, the kernel writes to no memory for these sockets. It may still
        // read packets that it had passed to a driver without copying them (IFF_TX_SKB_NO_LINEAR).
        self.sockets.clear();
        self.packet_socket_buffers.clear();
        self.done.extend(self.in_flight.take_all().into_iter().map(Completion::returned));
        (self.unsent, self.down, self.waits_for_kernel) = (false, false, false);
        self.sockets = self
            .lane
            .bind(&self.ceded)
            .map_err(|cause| self.failure("binding an AF_XDP socket again", cause))?;
        // Only now are the earlier sockets closed, of which a keeper has copies. The buffers of ceded
        // hardware queues come back with these.
        let ceded = &self.ceded;
        self.chunks.take_all(
            buffers,
            |holder| !matches!(holder, Holder::Socket(hardware) if ceded.contains(&hardware)),
        );
        (0..self.sockets.len()).for_each(|at| self.chunks.note_drops(at, 0));
        // The engine may sleep on the epoll instance already, so that stays the same.
        let watched = self.sleep.watch(&self.sockets, &mut self.counters);
        watched.map_err(|cause| self.failure("epoll", cause))
    }

    fn cede(&mut self, hardware: u32) -> Option<HardwareQueue> {
        self.give_up(hardware)
    }

    fn restore(&mut self, queue: HardwareQueue, buffers: &mut Vec<u32>) {
        self.serve_again(queue, buffers);
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
