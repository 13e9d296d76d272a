//! The data part: the hardware queues of one engine thread, as one device queue.
//!
//! All hardware queues share one memory (`XDP_SHARED_UMEM`), so a buffer may serve any of them. The
//! driver sends through the first one, which keeps the order of all packets.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use super::in_flight::{InFlight, Sent};
use super::large::Large;
use super::offload::{self, BEGINNING_BYTES};
use super::packet_socket::PacketRing;
use super::ring::{CONTINUES, Descriptor};
use super::shared::Shared;
use super::socket::{RING_ENTRIES, XdpSocket};
use crate::check::PacketLimits;
use crate::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, Info, Kick, LARGE_PACKET_BYTES, Meta,
    Outcome, Packet, Part, Received, SpaceId, Spaces,
};

/// Buffers that the driver keeps for packets to groups.
pub(super) const PACKET_SOCKET_BUFFERS: usize = 64;
/// The maximum number of descriptors of a packet to send (`MAX_SKB_FRAGS`, by default 17).
const PACKET_DESCRIPTORS: usize = 17;
/// Events that one system call takes off the descriptor to sleep on: those of all hardware queues.
const EVENTS: usize = 64;
/// Sleeps, and polls, between two reads of the kernel's counts of dropped packets.
const SLEEPS_PER_READ: u32 = 64;
const POLLS_PER_READ: u32 = 1 << 16;
/// The interval at which the engine polls for completions that nothing reports: 1 ms.
const COMPLETION_POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// System calls without progress after which the driver lets the engine go on.
const MAX_CALLS_WITHOUT_PROGRESS: u32 = 2;

pub(super) struct XdpQueue {
    info: Info,
    shared: Arc<Shared>,
    sockets: Vec<XdpSocket>,
    packet_ring: Option<PacketRing>,
    /// Buffers for packets to groups.
    packet_socket_buffers: VecDeque<u32>,
    chunk_bytes: u32,
    /// `true` for each chunk that is a receive buffer with the device.
    held: Vec<bool>,
    /// The space of the receive buffers, once the engine provided some.
    pool: Option<SpaceId>,
    in_flight: InFlight,
    done: VecDeque<Completion>,
    /// An epoll instance of all sockets, edge-triggered. Each `arm` takes its events, so only later
    /// ones make it readable.
    sleep: OwnedFd,
    /// Wakes the engine where nothing else does: for completions without copies, which the kernel
    /// does not report, and for packets that the kernel did not take.
    timer: OwnedFd,
    /// `true` if a socket works without copies.
    zero_copy: bool,
    /// The source that the next poll begins with: a hardware queue, or the groups' ring.
    next_source: usize,
    /// `true` if the kernel has not taken all descriptors from the transmit ring.
    unsent: bool,
    /// `true` if that is because the interface is down.
    down: bool,
    /// `true` if the kernel had no room for a large packet, or for those before it.
    waits_for_kernel: bool,
    sleeps: u32,
    polls: u32,
    /// The kernel's counts of dropped packets, as last seen.
    kernel_drops: u64,
    /// The program's count of packets that found no socket, as last seen.
    without_socket: u64,
    counters: Counters,
}

impl XdpQueue {
    pub(super) fn new(info: Info, shared: Arc<Shared>) -> Result<XdpQueue, DeviceError> {
        let failed = |what| {
            let name = info.name.clone();
            move |cause| DeviceError::Failed { name, what, cause }
        };
        let sockets = shared.bind().map_err(failed("binding an AF_XDP socket"))?;
        let packet_ring =
            shared.packet_ring().map_err(failed("mapping the packet socket's ring"))?;
        let umem = shared.umem().ok_or_else(|| {
            failed("opening a queue")(io::Error::other("the device has no memory yet"))
        })?;
        let chunks = umem.chunks();
        let zero_copy = sockets.iter().any(|socket| socket.zero_copy);
        let timer = timer().map_err(failed("timerfd_create"))?;
        let packet_socket = packet_ring.as_ref().map(PacketRing::socket);
        let sleep = sleep_fd(&sockets, packet_socket, timer.as_fd()).map_err(failed("epoll"))?;
        let shift = umem.chunk_bytes.trailing_zeros();
        Ok(XdpQueue {
            info,
            sockets,
            packet_ring,
            packet_socket_buffers: VecDeque::with_capacity(PACKET_SOCKET_BUFFERS),
            chunk_bytes: umem.chunk_bytes,
            held: vec![false; chunks as usize],
            pool: None,
            in_flight: InFlight::new(RING_ENTRIES, chunks, shift),
            done: VecDeque::with_capacity(RING_ENTRIES as usize),
            sleep,
            timer,
            zero_copy,
            next_source: 0,
            unsent: false,
            down: false,
            waits_for_kernel: false,
            sleeps: 0,
            polls: 0,
            kernel_drops: 0,
            without_socket: 0,
            counters: Counters::default(),
            shared,
        })
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

    fn chunk(&self, address: u64) -> usize {
        (address / u64::from(self.chunk_bytes)) as usize
    }

    /// Appends packets of one hardware queue to `out`. Returns how many, dropped ones included.
    fn poll_socket(
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
            self.take_packet(index, last + 1, pool, spaces, out);
        }
        self.sockets[index].rx.release();
        count
    }

    /// Takes a packet of so many descriptors off a receive ring. Appends its buffers to `out`, or
    /// gives them back to the device if the packet is dropped.
    fn take_packet(
        &mut self,
        index: usize,
        descriptors: u32,
        pool: SpaceId,
        spaces: &Spaces,
        out: &mut Vec<Received>,
    ) {
        let (from, chunk_bytes) = (out.len(), self.chunk_bytes);
        let (mut len, mut good) = (0, true);
        for ahead in 0..descriptors {
            let one = self.sockets[index].rx.peek(ahead);
            let chunk = self.chunk(one.address);
            // The kernel returns only buffers that it got, so this is a fault of a driver.
            if !self.held.get(chunk).is_some_and(|held| *held) {
                good = false;
                continue;
            }
            let (buffer, offset) = (chunk as u32 * chunk_bytes, one.address as u32);
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
                self.held[(part.buffer / chunk_bytes) as usize] = false;
            }
            self.counters.rx_packets += 1;
            self.counters.rx_bytes += len as u64;
            return;
        }
        self.counters.rx_dropped += 1;
        for part in out.drain(from..) {
            // The ring has room: its entries were taken for these buffers.
            let fill = &mut self.sockets[index].fill;
            if fill.room(1) > 0 {
                fill.push(u64::from(part.buffer));
            }
        }
        self.sockets[index].fill.publish();
    }

    /// Returns the metadata of a packet; `None` for one to drop.
    fn meta_of(&self, parts: &[Received], len: usize, spaces: &Spaces) -> Option<Meta> {
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

    /// Appends packets of the groups' ring to `out`. Returns how many, dropped ones included.
    fn poll_packet_socket(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> usize {
        let (Some(ring), Some(pool)) = (&mut self.packet_ring, self.pool) else { return 0 };
        let headroom = self.info.limits.rx_headroom_bytes;
        let most = self.info.limits.rx_buffer_bytes - headroom;
        let mut count = 0;
        while count < budget {
            let Some(next) = ring.next() else { break };
            let wanted = next.as_ref().map_or(1, |packet| packet.bytes.len().div_ceil(most).max(1));
            if wanted > self.packet_socket_buffers.len() {
                break;
            }
            count += 1;
            let from = out.len();
            if let Ok(packet) = next {
                let parts = packet.bytes.chunks(most).zip(self.packet_socket_buffers.iter());
                for (bytes, buffer) in parts {
                    let offset = buffer + headroom as u32;
                    let len = bytes.len() as u32;
                    if spaces.copy_in(pool, offset, bytes).is_err() {
                        break;
                    }
                    let mut part = Received::whole(pool, *buffer, offset, len, Meta::FULL);
                    part.continues = true;
                    out.push(part);
                }
                if out.len() - from == wanted {
                    (out[from].meta, out[from].tag) = (packet.meta, packet.tag);
                    if let Some(last) = out.last_mut() {
                        last.continues = false;
                    }
                    self.counters.rx_bytes += packet.bytes.len() as u64;
                } else {
                    out.truncate(from);
                }
            }
            ring.release();
            if out.len() == from {
                self.counters.rx_dropped += 1;
                continue;
            }
            self.counters.rx_packets += 1;
            for buffer in self.packet_socket_buffers.drain(..wanted) {
                self.held[(buffer / self.chunk_bytes) as usize] = false;
            }
        }
        count
    }

    /// Splits a packet's parts where chunks end. Returns the number of descriptors; `None` if there
    /// are too many, or a part is not in the registered memory.
    fn descriptors(
        &self,
        spaces: &Spaces,
        parts: &[Part],
        out: &mut [Descriptor; PACKET_DESCRIPTORS],
    ) -> Option<usize> {
        let most = if self.shared.spans() { PACKET_DESCRIPTORS } else { 1 };
        let chunk_bytes = u64::from(self.chunk_bytes);
        let mut count = 0;
        for part in parts {
            let mut address = spaces.device_address(part.space, part.offset, part.len)?;
            let mut left = u64::from(part.len);
            while left > 0 {
                let now = left.min(chunk_bytes - address % chunk_bytes);
                if count == most || self.chunk(address) >= self.held.len() {
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
    fn send(&mut self) -> Result<(), DeviceError> {
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
                Ok(()) | Err(Errno::AGAIN | Errno::NOBUFS | Errno::BUSY | Errno::INTR) => {
                    if fruitless >= MAX_CALLS_WITHOUT_PROGRESS {
                        return Ok(());
                    }
                }
                // The interface is down: the ring keeps the packets until it is up, which the link
                // watch reports.
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
    fn send_large(
        &mut self,
        spaces: &Spaces,
        packet: &Packet<'_>,
    ) -> Result<Option<Outcome>, DeviceError> {
        self.sockets[0].tx.publish();
        if self.sockets[0].tx.left() > 0 {
            self.send()?;
        }
        let shared = self.shared.clone();
        let Some(sender) = &shared.large else { return Ok(Some(self.counters.dropped())) };
        if self.sockets[0].tx.left() > 0 {
            self.waits_for_kernel = true;
            return Ok(None);
        }
        self.counters.system_calls += 1;
        match sender.send(spaces, packet) {
            Ok(Large::Sent(len)) => Ok(Some(self.counters.sent(len))),
            Ok(Large::Impossible) => Ok(Some(self.counters.dropped())),
            Ok(Large::Later { down }) => {
                self.down = down;
                self.waits_for_kernel = true;
                Ok(None)
            }
            Err(cause) => Err(self.failure("writev", cause)),
        }
    }

    /// Moves the kernel's completions to `done`.
    fn fetch_completions(&mut self) {
        for socket in &mut self.sockets {
            let available = socket.completion.available(RING_ENTRIES);
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

    /// Returns `true` if there is something to do right now.
    fn has_work(&mut self, tx_waiting: bool) -> bool {
        let has_room = self.room() > 0
            && self.in_flight.has_room(PACKET_DESCRIPTORS)
            && self.sockets[0].tx.room(PACKET_DESCRIPTORS as u32) >= PACKET_DESCRIPTORS as u32;
        let has_copied = || {
            self.packet_ring.as_ref().is_some_and(PacketRing::is_ready)
                && !self.packet_socket_buffers.is_empty()
        };
        !self.done.is_empty()
            || tx_waiting && has_room && !self.waits_for_kernel
            || has_copied()
            || self
                .sockets
                .iter_mut()
                .any(|socket| socket.rx.available(1) > 0 || socket.completion.available(1) > 0)
    }

    /// Returns the number of packets that the driver takes before the engine fetches completions.
    fn room(&self) -> usize {
        (RING_ENTRIES as usize).saturating_sub(self.in_flight.len() + self.done.len())
    }

    /// Sets the timer, if packets are in flight whose completions nothing else reports, or if the
    /// kernel did not take packets for a reason whose end nothing reports.
    fn set_timer(&mut self, tx_waiting: bool) {
        let waits = (self.unsent || tx_waiting && self.waits_for_kernel) && !self.down;
        if waits || self.zero_copy && self.in_flight.len() > 0 {
            self.counters.system_calls += 1;
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            let due = Itimerspec { it_interval: none, it_value: COMPLETION_POLL_INTERVAL };
            let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &due);
        }
    }

    /// Tells drivers that wait for receive buffers that there are some.
    fn wake_receivers(&mut self) {
        for socket in &self.sockets {
            if socket.fill.needs_wakeup() {
                self.counters.system_calls += 1;
                kick_rx(socket.fd.as_fd());
            }
        }
    }

    /// Adds to the counters what the kernel dropped since the last look.
    fn count_kernel_drops(&mut self) {
        let mut total = 0;
        for socket in &self.sockets {
            self.counters.system_calls += 1;
            if let Ok(counts) = sockopt::xdp_statistics(&socket.fd) {
                total += counts.rx_dropped + counts.rx_ring_full.unwrap_or(0);
            }
        }
        self.counters.rx_dropped += total.saturating_sub(self.kernel_drops);
        self.kernel_drops = total;
        let without_socket = self.shared.attached_program().without_socket();
        self.counters.rx_dropped += without_socket.saturating_sub(self.without_socket);
        self.without_socket = without_socket;
        if let Some(ring) = &self.packet_ring {
            self.counters.system_calls += 1;
            self.counters.rx_dropped += ring.take_drops();
        }
    }
}

/// Makes an epoll instance that becomes readable with each new event of a socket or the timer.
fn sleep_fd(
    sockets: &[XdpSocket],
    packet_socket: Option<BorrowedFd<'_>>,
    timer: BorrowedFd<'_>,
) -> io::Result<OwnedFd> {
    let sleep = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    watch(&sleep, sockets)?;
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    for fd in packet_socket.into_iter().chain([timer]) {
        epoll::add(&sleep, fd, epoll::EventData::new_u64(0), flags)?;
    }
    Ok(sleep)
}

/// Adds sockets to an epoll instance. A closed socket leaves it by itself.
fn watch(sleep: &OwnedFd, sockets: &[XdpSocket]) -> io::Result<()> {
    let both = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET;
    for socket in sockets {
        epoll::add(sleep, &socket.fd, epoll::EventData::new_u64(0), both)?;
    }
    Ok(())
}

fn timer() -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
    Ok(timerfd_create(TimerfdClockId::Monotonic, flags)?)
}

/// Makes the kernel process the transmit ring.
fn kick_tx(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::net::send(fd, &[], rustix::net::SendFlags::DONTWAIT).map(drop)
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

impl DeviceQueue for XdpQueue {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        let len = self.info.limits.rx_buffer_bytes as u32;
        let mut taken = 0;
        for buffer in buffers {
            let address = spaces.device_address(space, *buffer, len);
            let chunk = (buffer / self.chunk_bytes) as usize;
            let good = address == Some(u64::from(*buffer))
                && self.info.limits.is_aligned(*buffer)
                && spaces.is_writable(space, *buffer, len)
                && self.held.get(chunk).is_some_and(|held| !held);
            if !good {
                break;
            }
            if self.packet_ring.is_some()
                && self.packet_socket_buffers.len() < PACKET_SOCKET_BUFFERS
            {
                self.packet_socket_buffers.push_back(*buffer);
            } else {
                let fills = self.sockets.iter_mut().map(|socket| &mut socket.fill);
                let Some((room, fill)) =
                    fills.map(|fill| (fill.room(RING_ENTRIES), fill)).max_by_key(|(room, _)| *room)
                else {
                    break;
                };
                if room == 0 {
                    break;
                }
                fill.push(u64::from(*buffer));
            }
            self.held[chunk] = true;
            self.pool = Some(space);
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
        let sources = self.sockets.len() + 1;
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
                self.poll_packet_socket(spaces, out, budget - polled)
            };
        }
        self.next_source = (self.next_source + 1) % sources;
        Ok((self.counters.rx_packets - before) as usize)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let limits = PacketLimits {
            can: self.info.can,
            frame_bytes: self.shared.frame_bytes(),
            large_bytes: LARGE_PACKET_BYTES,
            parts: self.info.limits.tx_packet_parts,
            registered: true,
            pool: self.pool,
        };
        let mut descriptors = [Descriptor { address: 0, len: 0, options: 0 }; PACKET_DESCRIPTORS];
        let room = self.room();
        let mut taken = 0;
        self.waits_for_kernel = false;
        for packet in packets.iter().take(room) {
            if packet.meta.segmentation.is_some() {
                let Some(outcome) = self.send_large(spaces, packet)? else { break };
                self.done.push_back(Completion { token: packet.token, outcome });
                taken += 1;
                continue;
            }
            let len = limits.packet_len(packet.parts, packet.meta);
            let count = len.and_then(|_| self.descriptors(spaces, packet.parts, &mut descriptors));
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
        Some(self.sleep.as_fd())
    }

    /// Arms the sleep: takes the events so far, and then looks at the rings. In copy mode, the
    /// kernel also reports room in the socket when it completes a packet.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        if self.has_work(tx_waiting) {
            return Ok(Armed::Work);
        }
        self.sleeps = self.sleeps.wrapping_add(1);
        if self.sleeps.is_multiple_of(SLEEPS_PER_READ) {
            self.count_kernel_drops();
        }
        self.counters.system_calls += 1;
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A call that fails leaves the events, and the engine wakes up once more.
        let _ = epoll::wait(&self.sleep, &mut events[..], Some(&now));
        self.set_timer(tx_waiting);
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
        for (chunk, held) in self.held.iter_mut().enumerate() {
            if std::mem::take(held) {
                buffers.push(chunk as u32 * self.chunk_bytes);
            }
        }
        self.packet_socket_buffers.clear();
        self.done.extend(self.in_flight.take_all().into_iter().map(Completion::returned));
        self.unsent = false;
        self.kernel_drops = 0;
        self.sockets = self
            .shared
            .bind()
            .map_err(|cause| self.failure("binding an AF_XDP socket again", cause))?;
        // The engine sleeps on this descriptor, so it stays the same.
        watch(&self.sleep, &self.sockets).map_err(|cause| self.failure("epoll", cause))
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}
