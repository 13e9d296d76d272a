//! The data part: the hardware queues of one engine thread, as one device queue.
//!
//! These hardware queues share one memory (`XDP_SHARED_UMEM`), so a buffer may serve any of them.
//! The driver sends through the first one, which keeps the order of all packets of this thread.

mod chunks;
mod own;
mod receive;
mod sleep;
mod transmit;
mod verbs;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use rustix::net::sockopt;

use super::in_flight::PacketsInFlight;
use super::lane::Lane;
use super::left_packets::Taken;
use super::ring::CONTINUES;
use super::shared::SharedInterface;
use super::socket::{RX_ENTRIES, TX_ENTRIES, Umem, XdpSocket};
use crate::kernel_interface;
use crate::kernel_interface::full_rings::FullRings;
use crate::kernel_interface::host_traffic;
use crate::kernel_interface::packet_ring::PacketRing;
use crate::{Completion, Counters, DeviceError, Info, SpaceId};
use chunks::{Chunks, Holder};
use sleep::Sleep;

/// Buffers that the driver keeps for both rings of packet sockets: packets to groups, and packets
/// from this host's own sockets.
pub(super) const PACKET_SOCKET_BUFFERS: usize = 64;
/// The maximum number of descriptors of a packet to send (`MAX_SKB_FRAGS`, by default 17).
const PACKET_DESCRIPTORS: usize = 17;
/// Packets in flight are found by their addresses, in units of 2 KiB.
const IN_FLIGHT_SHIFT: u32 = 11;
/// System calls without progress after which the driver lets the engine go on.
const MAX_CALLS_WITHOUT_PROGRESS: u32 = 2;

pub(super) struct XdpQueue {
    info: Info,
    shared: Arc<SharedInterface>,
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
    in_flight: PacketsInFlight,
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
    /// The program's count of packets that found no socket, as last seen.
    without_socket: u64,
    counters: Counters,
}

impl XdpQueue {
    pub(super) fn new(info: Info, lane: Arc<Lane>) -> Result<XdpQueue, DeviceError> {
        let umem = lane.umem().ok_or_else(|| {
            info.failed("opening a queue")(io::Error::other("the device has no memory yet"))
        })?;
        let (mut sockets, mut chunks, drops) =
            sockets(&lane, &umem).map_err(info.failed("binding an AF_XDP socket"))?;
        let Taken { packets: left_packets, mut dropped } = lane.take_left_packets();
        if drops {
            dropped +=
                sockets.iter_mut().map(|socket| drop_waiting(socket, &mut chunks)).sum::<u64>();
        }
        let packet_ring =
            lane.packet_ring().map_err(info.failed("mapping the packet socket's ring"))?;
        let host_ring =
            lane.host_ring().map_err(info.failed("mapping the loopback socket's ring"))?;
        let host_bytes = if host_ring.is_some() { host_traffic::FRAME_BYTES } else { 0 };
        let without_socket = lane.shared.attached_program().without_socket();
        let zero_copy = sockets.iter().any(|socket| socket.zero_copy);
        let rings = packet_ring.iter().chain(&host_ring).map(PacketRing::socket);
        let sleep = Sleep::new(rings).map_err(info.failed("making a descriptor to sleep on"))?;
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
            in_flight: PacketsInFlight::new(TX_ENTRIES, in_flight_chunks, IN_FLIGHT_SHIFT),
            done: VecDeque::with_capacity(TX_ENTRIES as usize),
            sleep,
            zero_copy,
            next_source: 0,
            unsent: false,
            down: false,
            waits_for_kernel: false,
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
        kernel_interface::failure(&self.info, what, cause)
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
