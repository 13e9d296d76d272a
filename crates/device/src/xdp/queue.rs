//! The data part: the hardware queues of one engine thread, as one device queue.
//!
//! These hardware queues share one memory (`XDP_SHARED_UMEM`), so a buffer may serve any of them.
//! The driver sends through the first one, which keeps the order of all packets of this thread.

mod chunks;
mod own;
mod receive;
mod sleep;
mod transmit;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::net::sockopt;

use super::in_flight::InFlight;
use super::left_packets::Taken;
use super::ring::CONTINUES;
use super::shared::{Lane, Shared};
use super::socket::{RX_ENTRIES, TX_ENTRIES, Umem, XdpSocket};
use crate::kernel_interface::full_rings::FullRings;
use crate::kernel_interface::host_traffic;
use crate::kernel_interface::packet_socket::PacketRing;
use crate::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, HardwareQueue, Info, Kick, Packet,
    Received, SpaceId, Spaces,
};
use chunks::{Chunks, Holder};
use sleep::Sleep;

/// Buffers that the driver keeps for both rings of packet sockets: packets to groups, and packets
/// from this host's own sockets.
pub(super) const PACKET_SOCKET_BUFFERS: usize = 64;
/// The maximum number of descriptors of a packet to send (`MAX_SKB_FRAGS`, by default 17).
const PACKET_DESCRIPTORS: usize = 17;
/// Sleeps, and polls, between two reads of the kernel's counts of dropped packets.
const SLEEPS_PER_READ: u32 = 64;
const POLLS_PER_READ: u32 = 1 << 16;
/// Packets in flight are found by their addresses, in units of 2 KiB.
const IN_FLIGHT_SHIFT: u32 = 11;
/// System calls without progress after which the driver lets the engine go on.
const MAX_CALLS_WITHOUT_PROGRESS: u32 = 2;

pub(super) struct XdpQueue {
    info: Info,
    shared: Arc<Shared>,
    lane: Arc<Lane>,
    sockets: Vec<XdpSocket>,
    packet_ring: Option<PacketRing>,
    /// The packets of this host's own sockets for shared addresses.
    host_ring: Option<PacketRing>,
    /// Memory for a packet to this host's own sockets.
    host_packet: Vec<u8>,
    /// Buffers for the packets of both rings, and for those of `left_packets`.
    packet_socket_buffers: VecDeque<u32>,
    /// Packets from an earlier server's sockets. The queue delivers them first.
    left_packets: VecDeque<Vec<u8>>,
    /// The receive buffers.
    chunks: Chunks,
    /// The most receive buffers of one of several hardware queues: no other one can get them, even
    /// if it is served only later.
    most_held: u32,
    full_rings: FullRings,
    /// The hardware queues that sessions have to themselves.
    ceded: Vec<u32>,
    /// The space of the receive buffers, once the engine provided some.
    pool: Option<SpaceId>,
    in_flight: InFlight,
    done: VecDeque<Completion>,
    /// Also wakes the engine for completions without copies, which the kernel does not report, and
    /// for packets that the kernel did not take.
    sleep: Sleep,
    /// `true` if a socket works without copies.
    zero_copy: bool,
    /// The source that the next poll begins with: a hardware queue, or the groups' ring.
    next_source: usize,
    /// `true` if the kernel has not taken all descriptors from the transmit ring.
    unsent: bool,
    /// `true` if the last attempt to send found the interface down.
    down: bool,
    /// `true` if the kernel had no room for a large packet, or for those before it.
    waits_for_kernel: bool,
    sleeps: u32,
    polls: u32,
    /// The program's count of packets that found no socket, as last seen.
    without_socket: u64,
    counters: Counters,
}

impl XdpQueue {
    pub(super) fn new(info: Info, lane: Arc<Lane>) -> Result<XdpQueue, DeviceError> {
        let failed = |what| {
            let name = info.name.clone();
            move |cause| DeviceError::Failed { name, what, cause }
        };
        let umem = lane.umem().ok_or_else(|| {
            failed("opening a queue")(io::Error::other("the device has no memory yet"))
        })?;
        let (mut sockets, mut chunks, drops) =
            sockets(&lane, &umem).map_err(failed("binding an AF_XDP socket"))?;
        let Taken { packets: left_packets, mut dropped } = lane.take_left_packets();
        if drops {
            dropped +=
                sockets.iter_mut().map(|socket| drop_waiting(socket, &mut chunks)).sum::<u64>();
        }
        let packet_ring = lane.packet_ring().map_err(failed("mapping the packet socket's ring"))?;
        let host_ring = lane.host_ring().map_err(failed("mapping the loopback socket's ring"))?;
        let host_bytes = if host_ring.is_some() { host_traffic::FRAME_BYTES } else { 0 };
        let without_socket = lane.shared.attached_program().without_socket();
        let zero_copy = sockets.iter().any(|socket| socket.zero_copy);
        let rings = packet_ring.iter().chain(&host_ring).map(PacketRing::socket);
        let sleep = Sleep::new(rings).map_err(failed("making a descriptor to sleep on"))?;
        let most_held = match lane.hardware_queues() {
            1 => u32::MAX,
            several => info.limits.rx_ring.div_ceil(several) as u32,
        };
        let served = lane.hardware_queues().max(1);
        let rings = packet_ring.iter().chain(&host_ring).map(PacketRing::slots);
        // Some receive buffers are for the rings of packet sockets.
        let of_sockets = info.limits.rx_ring.saturating_sub(PACKET_SOCKET_BUFFERS) / served;
        let full_rings = FullRings::new(rings.chain([of_sockets.min(RX_ENTRIES as usize)]));
        let in_flight_chunks = (umem.memory.len() >> IN_FLIGHT_SHIFT) as u32 + 1;
        let mut queue = XdpQueue {
            info,
            sockets,
            packet_ring,
            host_ring,
            host_packet: Vec::with_capacity(host_bytes),
            packet_socket_buffers: VecDeque::with_capacity(PACKET_SOCKET_BUFFERS),
            left_packets,
            chunks,
            most_held,
            full_rings,
            ceded: Vec::new(),
            pool: None,
            in_flight: InFlight::new(TX_ENTRIES, in_flight_chunks, IN_FLIGHT_SHIFT),
            done: VecDeque::with_capacity(TX_ENTRIES as usize),
            sleep,
            zero_copy,
            next_source: 0,
            unsent: false,
            down: false,
            waits_for_kernel: false,
            sleeps: 0,
            polls: 0,
            without_socket,
            counters: Counters { rx_dropped: dropped, ..Counters::default() },
            shared: lane.shared.clone(),
            lane,
        };
        // Count the kernel's drops for an earlier server that was killed before it read the count.
        queue.count_kernel_drops();
        Ok(queue)
    }

    fn failure(&self, what: &'static str, cause: io::Error) -> DeviceError {
        let name = self.info.name.clone();
        match cause.raw_os_error() {
            // The kernel unbinds the sockets of an interface that it removes (`xsk_notifier` in
            // net/xdp/xsk.c).
            Some(libc::ENXIO | libc::ENODEV) => DeviceError::Gone { name, cause },
            _ => DeviceError::Failed { name, what, cause },
        }
    }

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

    /// Adds to the counters what the kernel dropped since the last look.
    fn count_kernel_drops(&mut self) {
        for (at, socket) in self.sockets.iter_mut().enumerate() {
            self.counters.system_calls += 1;
            if let Ok(counts) = sockopt::xdp_statistics(&socket.fd) {
                let total = counts.rx_dropped + counts.rx_ring_full.unwrap_or(0);
                self.counters.rx_dropped += total.saturating_sub(socket.kernel_drops);
                socket.kernel_drops = total;
                self.chunks.note_drops(at, total);
            }
        }
        // The program counts for the whole interface.
        if self.lane.is_first {
            let without_socket = self.shared.attached_program().without_socket();
            self.counters.rx_dropped += without_socket.saturating_sub(self.without_socket);
            self.without_socket = without_socket;
        }
        for ring in self.packet_ring.iter_mut().chain(&mut self.host_ring) {
            self.counters.system_calls += 1;
            self.counters.rx_dropped += ring.take_drops();
        }
    }
}

/// Returns a queue's sockets and buffers: those of an earlier server, or new ones. Also returns `true`
/// if the packets that wait in the sockets are to be dropped.
fn sockets(lane: &Lane, umem: &Umem) -> io::Result<(Vec<XdpSocket>, Chunks, bool)> {
    if let Some((mut sockets, ledger, drops)) = lane.go_on()? {
        let mut chunks = Chunks::new(umem, Some(ledger));
        if chunks.go_on(&mut sockets) {
            return Ok((sockets, chunks, drops));
        }
    }
    let sockets = lane.bind(&[])?;
    let zero_copy = sockets.iter().any(|socket| socket.zero_copy);
    let ledger = lane.new_ledger(umem.buffers(), zero_copy)?;
    // A next server goes on with the sockets only once it finds a ledger.
    lane.replace_ledger(ledger.as_ref())?;
    Ok((sockets, Chunks::new(umem, ledger), false))
}

/// Drops the packets that wait in a socket, whose buffers the socket gets again. Returns their number.
fn drop_waiting(socket: &mut XdpSocket, chunks: &mut Chunks) -> u64 {
    let waiting = socket.rx.available(RX_ENTRIES);
    let mut packets = 0;
    for ahead in 0..waiting {
        let one = socket.rx.peek(ahead);
        packets += u64::from(one.options & CONTINUES == 0);
        let Some((chunk, _)) = chunks.received(one.address) else { continue };
        if socket.fill.room(1) > 0 {
            socket.fill.push(u64::from(chunks.offset(chunk)));
        } else {
            chunks.set(chunk, Holder::Engine);
            socket.held -= 1;
        }
    }
    socket.rx.take(waiting);
    socket.rx.release();
    socket.fill.publish();
    packets
}

/// Makes the kernel process the fill ring, or poll the device.
fn kick_rx(fd: BorrowedFd<'_>) {
    // SAFETY: the kernel writes no bytes to a buffer of length 0.
    let _ = unsafe {
        libc::recvfrom(
            fd.as_raw_fd(),
            std::ptr::null_mut(),
            0,
            libc::MSG_DONTWAIT,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        )
    };
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
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_READ) {
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
        let count = self.done.len().min(budget);
        out.extend(self.done.drain(..count));
        Ok(count)
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
        self.sleeps = self.sleeps.wrapping_add(1);
        if self.sleeps.is_multiple_of(SLEEPS_PER_READ) {
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
