//! The queue of a TAP: one system call moves one packet.
//!
//! Unsafe lives here for `read` on addresses of data spaces. A peer may be writing there, so the driver may
//! form no reference, and the safe wrappers take references.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;

use super::hand::{self, LeftFile, PacketsInHand};
use super::open;
use crate::check::PacketLimits;
use crate::gather;
use crate::kernel_interface;
use crate::virtio::{self, HEADER_BYTES};
use crate::{
    Armed, Completion, Counters, DeviceError, DeviceQueue, Info, Kick, LARGE_FRAME_BYTES,
    POOL_HEADROOM_BYTES, Packet, Received, SpaceId, Spaces,
};

/// The maximum number of empty buffers that the driver holds.
const RX_BUFFERS: usize = 512;
/// The maximum number of tokens for `tx_complete`. The driver takes no more packets until the
/// engine fetches some.
const TX_TOKENS: usize = 1024;
/// The offset of the header in a pool buffer.
const HEADER_OFFSET: u32 = (POOL_HEADROOM_BYTES - HEADER_BYTES) as u32;

/// The one queue of the interface.
pub(super) struct TapQueue {
    info: Info,
    fd: Arc<OwnedFd>,
    /// An epoll that becomes readable when `fd` has an awaited event: readable if there are empty
    /// buffers, writable if packets found no room. `fd` itself would be readable also without a
    /// buffer to read into.
    sleep: OwnedFd,
    /// The events that `sleep` waits for.
    waits_for: epoll::EventFlags,
    buffers: VecDeque<(SpaceId, u32)>,
    done: VecDeque<Completion>,
    /// `true` if the last read found nothing.
    drained: bool,
    /// `true` if the last write found no room.
    full: bool,
    hand: PacketsInHand,
    /// What an earlier server had in hand: headers and packets.
    pub(super) left: VecDeque<Vec<u8>>,
    /// The file of these packets.
    pub(super) left_file: Option<LeftFile>,
    pub(super) counters: Counters,
}

impl TapQueue {
    pub(super) fn new(
        info: Info,
        fd: Arc<OwnedFd>,
        hand: PacketsInHand,
    ) -> Result<TapQueue, DeviceError> {
        let sleep =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(info.failed("epoll_create1"))?;
        let waits_for = epoll::EventFlags::IN;
        epoll::add(&sleep, &*fd, epoll::EventData::new_u64(0), waits_for)
            .map_err(info.failed("EPOLL_CTL_ADD"))?;
        Ok(TapQueue {
            info,
            fd,
            sleep,
            waits_for,
            buffers: VecDeque::with_capacity(RX_BUFFERS),
            done: VecDeque::with_capacity(TX_TOKENS),
            drained: false,
            full: false,
            hand,
            left: VecDeque::new(),
            left_file: None,
            counters: Counters::default(),
        })
    }

    /// Converts a system call's error into the fault of the interface as a whole.
    fn failure(&self, what: &'static str, cause: io::Error) -> DeviceError {
        kernel_interface::failure(&self.info, what, cause)
    }

    /// Reads one packet into a buffer. Returns its length in bytes and its metadata; `None` for a
    /// packet to drop, whose buffer is free again.
    fn read_into(
        &mut self,
        spaces: &mut Spaces,
        space: SpaceId,
        buffer: u32,
    ) -> io::Result<Option<(usize, crate::Meta)>> {
        let (start, room) = (buffer + HEADER_OFFSET, self.room());
        let to = spaces
            .writable(space, start, room as u32)
            .map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        self.hand.begin(buffer);
        self.counters.system_calls += 1;
        // SAFETY: `to` has `room` writable bytes, as just checked. The kernel writes them, and no
        // reference to them exists.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), to.as_ptr().cast(), room) };
        let Ok(got) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            self.hand.undo();
            return Err(error);
        };
        // If a read fills the buffer, the packet may have been cut, and the kernel counts all of its bytes.
        self.hand.count_read((got < room).then_some(got));
        let packet = self.packet_in(spaces, space, buffer, got);
        match packet {
            Some(_) => self.hand.end(buffer, got),
            None => self.hand.undo(),
        }
        Ok(packet)
    }

    /// Returns the length and the metadata of the packet in a buffer, of which `got` bytes have
    /// come, the header included; `None` for a packet to drop.
    fn packet_in(
        &self,
        spaces: &Spaces,
        space: SpaceId,
        buffer: u32,
        got: usize,
    ) -> Option<(usize, crate::Meta)> {
        let start = buffer + HEADER_OFFSET;
        let mut header = [0; HEADER_BYTES];
        // A read that fills the buffer to its last byte was truncated: the buffer is at least a
        // byte longer than any allowed packet.
        if got <= HEADER_BYTES
            || got >= self.room()
            || spaces.copy_out(space, start, &mut header).is_err()
        {
            return None;
        }
        let len = got - HEADER_BYTES;
        virtio::meta(header, len).map(|meta| (len, meta))
    }

    /// Returns the bytes of a buffer from its header on.
    fn room(&self) -> usize {
        self.info.limits.rx_buffer_bytes - HEADER_OFFSET as usize
    }

    /// Appends packets that an earlier server had in hand to `out`. Returns how many.
    #[cold]
    fn poll_left(&mut self, spaces: &mut Spaces, out: &mut Vec<Received>, budget: usize) -> usize {
        let mut returned = 0;
        while returned < budget.min(hand::MOST)
            && let Some(&(space, buffer)) = self.buffers.front()
            && let Some(bytes) = self.left.pop_front()
        {
            let fits = bytes.len() < self.room()
                && spaces.copy_in(space, buffer + HEADER_OFFSET, &bytes).is_ok();
            let packet = fits.then(|| self.packet_in(spaces, space, buffer, bytes.len()));
            if let Some((len, meta)) = packet.flatten() {
                self.hand.begin(buffer);
                self.hand.end(buffer, bytes.len());
                self.take(out, space, buffer, len, meta);
                returned += 1;
            } else {
                self.counters.rx_dropped += 1;
            }
            // A server that is killed before this note leaves the packet twice.
            if let Some(file) = &mut self.left_file {
                file.take();
            }
        }
        if self.left.is_empty() {
            self.left_file = None;
        }
        returned
    }

    /// Appends a packet, and gives up its buffer, the first one.
    #[inline]
    fn take(
        &mut self,
        out: &mut Vec<Received>,
        space: SpaceId,
        buffer: u32,
        len: usize,
        meta: crate::Meta,
    ) {
        self.buffers.pop_front();
        self.counters.received(len);
        let offset = buffer + POOL_HEADROOM_BYTES as u32;
        out.push(Received::whole(space, buffer, offset, len as u32, meta));
    }

    /// Writes one packet. Returns its length in bytes, or `Ok(None)` for a packet to drop.
    fn write_out(&mut self, spaces: &Spaces, packet: &Packet<'_>) -> io::Result<Option<usize>> {
        let limits = PacketLimits {
            // An administrator may have raised the kernel's MTU since. The kernel checks the length
            // itself.
            frame_bytes: LARGE_FRAME_BYTES,
            ..PacketLimits::of(&self.info, false, None)
        };
        let Some(len) = limits.len_of(packet) else { return Ok(None) };
        let header = virtio::header(packet.meta);
        let padding = gather::padding(len);
        let written = gather::write(self.fd.as_fd(), &header, spaces, packet.parts, padding);
        self.counters.system_calls += u64::from(written.is_some());
        written.map(|written| written.map(|()| len)).transpose()
    }
}

/// An engine that ends has handled all packets that it received.
impl Drop for TapQueue {
    fn drop(&mut self) {
        self.hand.clear();
    }
}

impl DeviceQueue for TapQueue {
    fn rx_fill(&mut self, spaces: &Spaces, space: SpaceId, buffers: &[u32]) -> usize {
        self.hand.clear();
        let room = (RX_BUFFERS - self.buffers.len()).min(buffers.len());
        let taken = self.info.limits.writable(spaces, space, &buffers[..room]);
        self.buffers.extend(taken.iter().map(|buffer| (space, *buffer)));
        taken.len()
    }

    fn rx_poll(
        &mut self,
        spaces: &mut Spaces,
        out: &mut Vec<Received>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        self.hand.clear();
        if !self.left.is_empty() {
            return Ok(self.poll_left(spaces, out, budget));
        }
        let mut returned = 0;
        // Dropped packets count against the budget too, so that bad packets cannot prolong this
        // loop.
        for _ in 0..budget {
            let Some(&(space, buffer)) = self.buffers.front() else { break };
            if self.hand.is_full() {
                break;
            }
            match self.read_into(spaces, space, buffer) {
                Ok(Some((len, meta))) => {
                    self.take(out, space, buffer, len, meta);
                    returned += 1;
                }
                Ok(None) => self.counters.rx_dropped += 1,
                Err(cause) => match cause.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        self.drained = true;
                        return Ok(returned);
                    }
                    Some(libc::EINTR) => {}
                    // The server removed the buffer's memory since it was provided, so the driver
                    // drops the buffer.
                    Some(libc::EFAULT) => {
                        self.buffers.pop_front();
                        self.counters.rx_dropped += 1;
                    }
                    _ if returned > 0 => break,
                    _ => return Err(self.failure("read", cause)),
                },
            }
        }
        self.drained = false;
        Ok(returned)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        let room = TX_TOKENS - self.done.len();
        self.full = false;
        let mut taken = 0;
        for packet in packets.iter().take(room) {
            let outcome = match self.write_out(spaces, packet) {
                Ok(Some(len)) => self.counters.sent(len),
                Ok(None) => self.counters.dropped(),
                Err(cause) => match cause.raw_os_error() {
                    Some(libc::EAGAIN | libc::EINTR) => {
                        self.full = true;
                        break;
                    }
                    Some(libc::EBADFD | libc::ENODEV | libc::ENXIO) => {
                        if taken > 0 {
                            // The next call reports the error; this call returns how many packets
                            // it took.
                            break;
                        }
                        return Err(self.failure("write", cause));
                    }
                    // EIO: the interface is down, and may come up. EINVAL: the kernel refuses the
                    // headers. ENOBUFS, ENOMEM: the kernel has no memory for a buffer now. As on
                    // any wire, the packet is lost.
                    _ => self.counters.dropped(),
                },
            };
            self.done.push_back(Completion { token: packet.token, outcome });
            taken += 1;
        }
        Ok(taken)
    }

    /// Does nothing: the calls that took the buffers and packets did all work.
    fn kick(&mut self, _: &mut Spaces, _: Kick) -> Result<(), DeviceError> {
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        Ok(Completion::take(&mut self.done, out, budget))
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sleep.as_fd())
    }

    /// Arms the sleep. The descriptor is level-triggered: work that comes between the last poll and
    /// the sleep makes it readable, so no further check is necessary.
    fn arm(&mut self, tx_waiting: bool) -> Result<Armed, DeviceError> {
        let receives = !self.buffers.is_empty();
        let room_came = tx_waiting && !self.full;
        if !self.done.is_empty() || room_came || (receives && !self.drained) {
            return Ok(Armed::Work);
        }
        let mut wanted = epoll::EventFlags::empty();
        if receives {
            wanted |= epoll::EventFlags::IN;
        } else {
            // Without a buffer to read into, the driver does not wait for readable events, which
            // would report that the interface is gone. The kernel reports that as priority data
            // too, which a TAP never has. So to wait for priority data wakes only for the end.
            wanted |= epoll::EventFlags::PRI;
            self.counters.system_calls += 1;
            open::name(&self.fd).map_err(|cause| self.failure("TUNGETIFF", cause))?;
        }
        if tx_waiting {
            wanted |= epoll::EventFlags::OUT;
        }
        if wanted != self.waits_for {
            self.counters.system_calls += 1;
            epoll::modify(&self.sleep, &*self.fd, epoll::EventData::new_u64(0), wanted)
                .map_err(|errno| self.failure("EPOLL_CTL_MOD", errno.into()))?;
            self.waits_for = wanted;
        }
        Ok(Armed::Sleep)
    }

    fn reset(&mut self, buffers: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.counters.resets += 1;
        buffers.extend(self.buffers.drain(..).map(|(_, buffer)| buffer));
        self.drained = false;
        self.full = false;
        self.counters.system_calls += 2;
        open::set_header(self.fd.as_fd())
            .map_err(|cause| self.failure("TUNSETVNETHDRSZ", cause))?;
        open::set_offloads(self.fd.as_fd(), self.info.can.rx_offload)
            .map_err(|cause| self.failure("TUNSETOFFLOAD", cause))?;
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use towpath_memory::Region;

    use super::*;
    use crate::{Capabilities, EarlierObjects, Limits, Meta, Part, Space};

    /// Returns a driver on a socket pair: a test can fill a socket, but hardly a TAP's descriptor.
    fn on_sockets() -> (TapQueue, OwnedFd) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (fd, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let can = Capabilities { tx_in_place: true, ..Capabilities::default() };
        let name = "sockets".to_owned();
        let info = Info {
            name,
            mac: [0; 6],
            mtu: 1500,
            can,
            queues: 1,
            limits: Limits::new(2048),
            rx_queue_packets: 0,
        };
        let hand = PacketsInHand::new(PacketsInHand::file().unwrap(), None).unwrap();
        (TapQueue::new(info, Arc::new(fd), hand).unwrap(), other)
    }

    /// Returns the packets that a queue receives, with their order.
    fn receive(queue: &mut TapQueue, spaces: &mut Spaces) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        queue.rx_poll(spaces, &mut out, 16).unwrap();
        let bytes = |one: &Received| {
            let mut bytes = vec![0; one.len as usize];
            spaces.copy_out(one.space, one.offset, &mut bytes).unwrap();
            bytes
        };
        out.iter().map(bytes).collect()
    }

    /// A server that is killed with packets in hand leaves them, and no others.
    #[test]
    fn packets_in_hand_are_received_again() {
        let (mut queue, other) = on_sockets();
        let ledger = PacketsInHand::file().unwrap();
        queue.hand = PacketsInHand::new(ledger.try_clone().unwrap(), None).unwrap();
        let (region, memory) = Region::in_kept_file("towpath-packets", 64 << 10).unwrap();
        let mut spaces = Spaces::default();
        let pool = spaces.add(Space::writable(region));
        let send = |number: u8| {
            let packet = [&[0; HEADER_BYTES][..], &[number + 1; 60]].concat();
            rustix::io::write(&other, &packet).unwrap();
        };
        assert_eq!(queue.rx_fill(&spaces, pool, &[0, 2048, 4096, 6144]), 4);
        send(0);
        assert_eq!(receive(&mut queue, &mut spaces), [[1; 60]]);
        // The engine has handled the first one, and has the others in hand.
        send(1);
        send(2);
        assert_eq!(receive(&mut queue, &mut spaces), [[2; 60], [3; 60]]);
        // A killed server does not clear its ledger.
        let unused = PacketsInHand::new(PacketsInHand::file().unwrap(), None).unwrap();
        drop(std::mem::replace(&mut queue.hand, unused));
        drop(queue);

        let mut earlier = EarlierObjects::new(false);
        earlier.add(hand::LEDGER, 3, ledger);
        earlier.add("device-memory-0", 3, memory);
        let (mut next, _other) = on_sockets();
        next.left = hand::left(&earlier, None).unwrap().into_iter().flatten().collect();
        let mut spaces = Spaces::default();
        let pool = spaces.add(Space::writable(Region::private(64 << 10).unwrap()));
        // One buffer at a time.
        for number in [1, 2] {
            assert_eq!(next.rx_fill(&spaces, pool, &[0]), 1);
            assert_eq!(next.arm(false).unwrap(), Armed::Work);
            assert_eq!(receive(&mut next, &mut spaces), [[number + 1; 60]]);
        }
        assert!(receive(&mut next, &mut spaces).is_empty());
        assert_eq!(next.counters().rx_packets, 2);
    }

    /// A server that is killed before it has received all packets of an earlier one leaves the rest. A server
    /// that is killed before it has a ledger leaves all of them.
    #[test]
    fn packets_in_hand_outlive_a_second_kill() {
        let packet = |number: u8| [&[0; HEADER_BYTES][..], &[number; 60]].concat();
        let mut earlier = EarlierObjects::new(false);
        let left: VecDeque<_> = (1..=3).map(packet).collect();
        // The second server: its file, its ledger, and the memory of its packets.
        let file = LeftFile::file(&left).unwrap();
        let left_file = LeftFile::new(file.try_clone().unwrap(), &left).unwrap();
        let (mut queue, other) = on_sockets();
        let ledger = PacketsInHand::file().unwrap();
        queue.hand = PacketsInHand::new(ledger.try_clone().unwrap(), None).unwrap();
        (queue.left, queue.left_file) = (left, Some(left_file));
        let (region, memory) = Region::in_kept_file("towpath-packets", 64 << 10).unwrap();
        earlier.add(hand::LEFT, 4, file);
        earlier.add(hand::LEDGER, 4, ledger);
        earlier.add("device-memory-0", 4, memory);
        let left_now = || {
            let left = hand::left(&earlier, None).unwrap().into_iter();
            left.map(|one| one.map(|packet| packet[HEADER_BYTES])).collect::<Vec<_>>()
        };
        assert_eq!(left_now(), [Some(1), Some(2), Some(3)]);
        let mut spaces = Spaces::default();
        let pool = spaces.add(Space::writable(region));
        queue.rx_fill(&spaces, pool, &[0]);
        assert_eq!(receive(&mut queue, &mut spaces), [[1; 60]]);
        assert_eq!(left_now(), [Some(1), Some(2), Some(3)], "one in hand, two in the file");
        queue.rx_fill(&spaces, pool, &[2048]);
        assert_eq!(left_now(), [Some(2), Some(3)], "the engine has handled the first one");
        assert_eq!(receive(&mut queue, &mut spaces), [[2; 60]]);
        // The third server is killed before it has a ledger.
        let copy: VecDeque<_> = left_now().into_iter().flatten().map(packet).collect();
        let file = LeftFile::file(&copy).unwrap();
        earlier.add(hand::LEFT, 5, file);
        assert_eq!(hand::left(&earlier, None).unwrap().len(), 2);
        // A fourth server with a ledger has received no packet, and has not stored its memory.
        let file = LeftFile::file(&copy).unwrap();
        earlier.add(hand::LEFT, 6, file);
        earlier.add(hand::LEDGER, 6, PacketsInHand::file().unwrap());
        let left: Vec<_> = hand::left(&earlier, None).unwrap().into_iter().flatten().collect();
        assert_eq!(left, Vec::from(copy));
        drop((queue, other));
    }

    fn wakes(device: &TapQueue) -> bool {
        let fd = device.sleep_fd().unwrap();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 })).unwrap() > 0
    }

    #[test]
    fn no_room_is_back_pressure_and_room_wakes() {
        let (mut device, other) = on_sockets();
        let mut spaces = Spaces::default();
        let memory = spaces.add(Space::writable(Region::private(8192).unwrap()));
        assert_eq!(device.rx_fill(&spaces, memory, &[0]), 1);
        assert_eq!(device.rx_poll(&mut spaces, &mut Vec::new(), 9).unwrap(), 0);
        let parts = [Part { space: memory, offset: 4096, len: 1000 }];
        let packets = [Packet { parts: &parts, meta: Meta::FULL, tag: None, token: 1 }; 32];
        let mut sent = 0;
        while !device.full {
            sent += device.tx_submit(&mut spaces, &packets).unwrap();
            while device.tx_complete(&mut Vec::new(), 32).unwrap() > 0 {}
            assert!(sent < 10_000, "never full");
        }
        let counters = device.counters();
        assert_eq!((counters.tx_packets, counters.tx_dropped), (sent as u64, 0));
        assert_eq!(device.arm(true).unwrap(), Armed::Sleep);
        assert!(!wakes(&device), "woken without room");

        let mut packet = [0; 2048];
        for _ in 0..sent {
            assert_eq!(rustix::io::read(&other, &mut packet[..]).unwrap(), 1012);
        }
        assert!(wakes(&device), "not woken by room");
        assert_eq!(device.tx_submit(&mut spaces, &packets[..3]).unwrap(), 3);
        device.tx_complete(&mut Vec::new(), 9).unwrap();

        // No packet waits for room, so room does not wake.
        assert_eq!(device.arm(false).unwrap(), Armed::Sleep);
        assert!(!wakes(&device), "woken by room for which no packet waits");
        rustix::io::write(&other, &[0; 100]).unwrap();
        assert!(wakes(&device), "not woken by a packet");
        assert_eq!(device.rx_poll(&mut spaces, &mut Vec::new(), 9).unwrap(), 1);
    }

    #[test]
    fn tokens_are_bounded() {
        let (mut device, other) = on_sockets();
        let mut spaces = Spaces::default();
        let memory = spaces.add(Space::writable(Region::private(4096).unwrap()));
        let parts = [Part { space: memory, offset: 0, len: 60 }];
        let packets = [Packet { parts: &parts, meta: Meta::FULL, tag: None, token: 1 }; 32];
        let (mut sent, mut packet) = (0, [0; 128]);
        loop {
            let taken = device.tx_submit(&mut spaces, &packets).unwrap();
            sent += taken;
            for _ in 0..taken {
                rustix::io::read(&other, &mut packet[..]).unwrap();
            }
            if taken < packets.len() {
                break;
            }
        }
        assert_eq!(sent, TX_TOKENS);
        assert_eq!(device.arm(true).unwrap(), Armed::Work, "there are tokens to fetch");
    }
}
