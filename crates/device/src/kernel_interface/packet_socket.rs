//! A packet socket with a ring (packet(7), `PACKET_RX_RING` with `TPACKET_V2`). It copies packets,
//! and the kernel receives them too.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

use libc::{sock_filter, sock_fprog, tpacket_req, tpacket2_hdr};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use towpath_bpf::Program;
use towpath_packet::{TagProtocol, VlanTag};

use super::socket_option::set;
use crate::virtio::{self, HEADER_BYTES};
use crate::{Limits, Meta, Received, SpaceId, Spaces};

/// The size of the ring of a socket for packets to groups, in bytes.
pub(crate) const RING_BYTES: u32 = 4 << 20;
/// The smallest block of the ring, in bytes.
const BLOCK_BYTES: u32 = 64 << 10;
/// Bytes of a frame before the packet: the header, the address, the virtio-net header and gaps.
const BEFORE_PACKET_BYTES: usize = 192;
/// Bytes of the virtio-net header in front of a packet (`struct virtio_net_hdr`).
pub(crate) const KERNEL_HEADER_BYTES: usize = 10;
/// The instruction of a classic program (`linux/filter.h`) that ends it with a constant.
pub(super) const RETURN: u16 = 0x06;
/// `PACKET_VNET_HDR`, `PACKET_IGNORE_OUTGOING` (`linux/if_packet.h`).
pub(crate) const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;

/// The socket, which the control part configures and the queue reads.
pub(crate) struct PacketSocket {
    fd: OwnedFd,
    index: u32,
    ring_bytes: u32,
    slot_bytes: u32,
    /// The number of slots in the ring, each for one packet.
    slots: u32,
    /// The next mapping drops the packets that wait.
    drops_waiting: AtomicBool,
}

/// Creates a packet socket. With protocol 0 it receives nothing until [`bind`] gives it another
/// one.
pub(crate) fn create() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?)
}

/// Binds a packet socket to an interface, for packets of a protocol.
pub(crate) fn bind(fd: BorrowedFd<'_>, index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: all zeros is a valid value of this structure of integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index as i32;
    let size = size_of::<libc::sockaddr_ll>() as u32;
    // SAFETY: the pointer and the length are those of a live address.
    let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl PacketSocket {
    /// Creates a socket that receives nothing, for what the interface is to receive.
    pub(crate) fn without_packets(index: u32) -> io::Result<PacketSocket> {
        Ok(PacketSocket {
            fd: create()?,
            index,
            ring_bytes: 0,
            slot_bytes: 0,
            slots: 0,
            drops_waiting: AtomicBool::new(false),
        })
    }

    /// Goes on with the socket of an earlier server, which that server opened with the same sizes.
    /// `drops_waiting`: one of the packets that wait may have made that server crash.
    pub(crate) fn of_earlier_server(
        fd: OwnedFd,
        index: u32,
        frame_bytes: usize,
        ring_bytes: u32,
        drops_waiting: bool,
    ) -> PacketSocket {
        let slot_bytes = slot_bytes(frame_bytes);
        let (slots, drops_waiting) = (ring_bytes / slot_bytes, AtomicBool::new(drops_waiting));
        PacketSocket { fd, index, ring_bytes, slot_bytes, slots, drops_waiting }
    }

    /// Opens a socket on an interface, which at first copies nothing. `frame_bytes`: the longest
    /// frame. `ring_bytes`: the size of the ring.
    pub(crate) fn open(
        index: u32,
        frame_bytes: usize,
        ring_bytes: u32,
    ) -> io::Result<PacketSocket> {
        let slot_bytes = slot_bytes(frame_bytes);
        let slots = ring_bytes / slot_bytes;
        let socket =
            PacketSocket { ring_bytes, slot_bytes, slots, ..PacketSocket::without_packets(index)? };
        socket.copy_nothing()?;
        let version = libc::tpacket_versions::TPACKET_V2 as i32;
        let fd = socket.fd.as_fd();
        set(fd, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        set(fd, libc::SOL_PACKET, PACKET_VNET_HDR, &1i32)?;
        set(fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32)?;
        let block_bytes = slot_bytes.max(BLOCK_BYTES);
        let ring = tpacket_req {
            tp_block_size: block_bytes,
            tp_block_nr: ring_bytes / block_bytes,
            tp_frame_size: slot_bytes,
            tp_frame_nr: slots,
        };
        set(socket.fd.as_fd(), libc::SOL_PACKET, libc::PACKET_RX_RING, &ring)?;
        bind(socket.fd.as_fd(), index, libc::ETH_P_ALL as u16)?;
        Ok(socket)
    }

    /// Returns the number of packets for which a ring of this size has room.
    pub(crate) fn slots(frame_bytes: usize, ring_bytes: u32) -> usize {
        (ring_bytes / slot_bytes(frame_bytes)) as usize
    }

    /// Copies the packets that a program keeps from now on.
    pub(crate) fn attach(&self, program: &Program) -> io::Result<()> {
        let program = program.as_fd().as_raw_fd();
        set(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program)
    }

    /// Copies no packet from now on.
    pub(crate) fn copy_nothing(&self) -> io::Result<()> {
        self.set_filter(vec![sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 }])
    }

    /// Copies the packets that a classic program keeps from now on.
    pub(crate) fn set_filter(&self, mut program: Vec<sock_filter>) -> io::Result<()> {
        let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::StorageFull)?;
        let program = sock_fprog { len: length, filter: program.as_mut_ptr() };
        // The kernel reads the program's instructions during the call.
        set(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Makes the interface receive packets to one of the device's own addresses, or no longer.
    pub(crate) fn receive_for(&self, mac: &[u8; 6], wanted: bool) -> io::Result<()> {
        self.membership(libc::PACKET_MR_UNICAST, mac, wanted)
    }

    /// Makes the interface receive packets to a group, or no longer. The kernel joins only groups
    /// of its own sockets, and a device drops the others.
    pub(crate) fn join(&self, group: &[u8; 6], wanted: bool) -> io::Result<()> {
        self.membership(libc::PACKET_MR_MULTICAST, group, wanted)
    }

    /// Makes the interface receive packets to all groups, or no longer.
    pub(crate) fn join_all(&self, wanted: bool) -> io::Result<()> {
        self.membership(libc::PACKET_MR_ALLMULTI, &[0; 6], wanted)
    }

    /// Sets promiscuous mode.
    pub(crate) fn promiscuous(&self, wanted: bool) -> io::Result<()> {
        self.membership(libc::PACKET_MR_PROMISC, &[0; 6], wanted)
    }

    fn membership(&self, kind: i32, mac: &[u8; 6], wanted: bool) -> io::Result<()> {
        let mut address = [0; 8];
        address[..6].copy_from_slice(mac);
        let request = libc::packet_mreq {
            mr_ifindex: self.index as i32,
            mr_type: kind as u16,
            mr_alen: 6,
            mr_address: address,
        };
        let name = if wanted { libc::PACKET_ADD_MEMBERSHIP } else { libc::PACKET_DROP_MEMBERSHIP };
        set(self.fd.as_fd(), libc::SOL_PACKET, name, &request)
    }

    /// Returns the number of packets that the socket had no room for since the last call.
    pub(crate) fn take_drops(&self) -> u64 {
        let mut statistics = [0u32; 2];
        let mut len = size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the pointers are those of live numbers, and `len` is the first one's size.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        if result < 0 { 0 } else { u64::from(statistics[1]) }
    }
}

/// The names under which a keeper holds a socket with a ring for packets to groups, by the size of a
/// slot: 1 KiB and twice as much each.
const RING_NAMES: [&str; 8] = [
    "device-ring-1",
    "device-ring-2",
    "device-ring-4",
    "device-ring-8",
    "device-ring-16",
    "device-ring-32",
    "device-ring-64",
    "device-ring-128",
];

/// Returns the name under which a keeper holds a socket whose ring is for frames of this size. A ring of
/// another size is of no use to the next server.
pub(crate) fn ring_name(frame_bytes: usize) -> Option<&'static str> {
    let place = slot_bytes(frame_bytes).ilog2().checked_sub(10)?;
    RING_NAMES.get(place as usize).copied()
}

/// Returns the size of the slot for a packet.
fn slot_bytes(frame_bytes: usize) -> u32 {
    (frame_bytes + BEFORE_PACKET_BYTES).next_power_of_two() as u32
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A packet in the ring.
struct Copied<'a> {
    bytes: &'a [u8],
    meta: Meta,
    tag: Option<VlanTag>,
}

/// The buffers for packets of a ring.
pub(crate) struct Target<'a> {
    pub(crate) pool: SpaceId,
    pub(crate) buffers: &'a mut VecDeque<u32>,
    pub(crate) limits: &'a Limits,
    /// The MAC addresses to write into packets, if they come from an interface without.
    pub(crate) mac: Option<[u8; 6]>,
}

impl Copied<'_> {
    /// Copies the packet into as many buffers as it needs. Returns its length in bytes, 0 if that
    /// is impossible.
    fn copy(&self, spaces: &mut Spaces, to: &Target<'_>, out: &mut Vec<Received>) -> usize {
        let (from, headroom) = (out.len(), to.limits.rx_headroom_bytes);
        let parts = self.bytes.chunks(to.limits.rx_buffer_bytes - headroom).zip(&*to.buffers);
        for (bytes, buffer) in parts {
            let offset = buffer + headroom as u32;
            if spaces.copy_in(to.pool, offset, bytes).is_err() {
                out.truncate(from);
                return 0;
            }
            let mut part =
                Received::whole(to.pool, *buffer, offset, bytes.len() as u32, Meta::FULL);
            part.continues = true;
            out.push(part);
        }
        let Some(last) = out[from..].last_mut() else { return 0 };
        last.continues = false;
        (out[from].meta, out[from].tag) = (self.meta, self.tag);
        if let Some(mac) = to.mac {
            for at in [0, 6] {
                let _ = spaces.copy_in(to.pool, out[from].offset + at, &mac);
            }
        }
        self.bytes.len()
    }
}

/// The socket's ring, mapped for as long as this value lives.
pub(crate) struct PacketRing {
    socket: Arc<PacketSocket>,
    map: NonNull<u8>,
    map_bytes: usize,
    /// The slot of the next packet.
    next: u32,
    /// The number of packets that were released, ever, which the last slot to be released has too.
    released: u32,
    /// Packets that were dropped at the beginning.
    dropped: u64,
}

/// Where a slot has the number of its release: four bytes of `struct tpacket2_hdr` that are there for
/// its alignment, and that the kernel clears when it fills the slot.
const RELEASE_NUMBER: usize = std::mem::offset_of!(tpacket2_hdr, tp_padding);

// SAFETY: the ring has one owner in this process, which accesses the mapping through `&self` or
// `&mut self`. The mapping does not depend on the thread.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// Maps the ring of a socket, which has no other mapping that reads it.
    pub(crate) fn map(socket: Arc<PacketSocket>) -> io::Result<PacketRing> {
        let map_bytes = socket.ring_bytes as usize;
        // SAFETY: the kernel chooses a free range of addresses, so the call replaces no mapping.
        let map = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                map_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &*socket,
                0,
            )?
        };
        let map = NonNull::new(map.cast()).ok_or(io::ErrorKind::InvalidData)?;
        let mut ring = PacketRing { socket, map, map_bytes, next: 0, released: 0, dropped: 0 };
        ring.find_next();
        if ring.socket.drops_waiting.swap(false, Ordering::Relaxed) {
            while ring.dropped < u64::from(ring.socket.slots) && ring.is_ready() {
                ring.release();
                ring.dropped += 1;
            }
        }
        Ok(ring)
    }

    /// Finds the slot of the next packet: an earlier mapping, of this process or of an earlier server,
    /// may have taken packets. It follows the slot that was released last. The kernel fills that one
    /// only when it has filled all others; then the next packet is the oldest.
    fn find_next(&mut self) {
        let (mut last, mut oldest, mut is_full) = (None, None, true);
        for slot in 0..self.socket.slots {
            self.next = slot;
            let number = self.release_number().load(Ordering::Relaxed);
            let is_later = last.is_none() || (number.wrapping_sub(self.released) as i32) > 0;
            if number != 0 && is_later {
                (self.released, last) = (number, Some((slot, self.is_ready())));
            }
            is_full &= self.is_ready();
            // SAFETY: the slot begins with this structure of integers, for which any bytes are valid. The
            // kernel may write it meanwhile; then the time may be wrong, which is used only if every slot
            // was this process's when read, and the kernel writes into none of these.
            let header = unsafe { self.slot().cast::<tpacket2_hdr>().read_volatile() };
            let time = (header.tp_sec, header.tp_nsec, slot);
            oldest = Some(oldest.map_or(time, |oldest: (u32, u32, u32)| oldest.min(time)));
        }
        self.next = match (last, oldest) {
            // A server that was killed within `release` left this one unreleased.
            (Some((slot, true)), _) => slot,
            (Some((slot, false)), _) => (slot + 1) % self.socket.slots,
            (None, Some((.., slot))) if is_full => slot,
            _ => 0,
        };
    }

    fn slot(&self) -> NonNull<u8> {
        // SAFETY: `next` is below the number of slots in the mapping.
        unsafe { self.map.add(self.next as usize * self.socket.slot_bytes as usize) }
    }

    /// Returns the status word of the next slot.
    fn status(&self) -> &AtomicU32 {
        const _: () = assert!(std::mem::offset_of!(tpacket2_hdr, tp_status) == 0);
        // SAFETY: a slot begins with the aligned status word; the kernel and this process access it
        // atomically.
        unsafe { self.slot().cast().as_ref() }
    }

    /// Returns the word of the next slot with the number of its release.
    fn release_number(&self) -> &AtomicU32 {
        const _: () = assert!(RELEASE_NUMBER.is_multiple_of(4));
        // SAFETY: the aligned word is inside the slot's header. The kernel writes it only while the
        // slot is the kernel's.
        unsafe { self.slot().add(RELEASE_NUMBER).cast().as_ref() }
    }

    /// Returns `true` if there is a packet.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Returns the next packet, which stays until [`PacketRing::release`]. `None` if there is none;
    /// an error for one to drop: cut off, or with metadata that does not fit.
    fn next(&self) -> Option<Result<Copied<'_>, ()>> {
        let status = self.status().load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the slot begins with this structure of integers, and is this process's until
        // `release`.
        let header = unsafe { self.slot().cast::<tpacket2_hdr>().read() };
        let (at, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let inside = at + len <= self.socket.slot_bytes as usize && at >= KERNEL_HEADER_BYTES;
        if header.tp_len != header.tp_snaplen || !inside {
            return Some(Err(()));
        }
        // SAFETY: the range is inside the frame, as just checked. The kernel does not write it
        // until `release`, which takes `&mut self`.
        let bytes = unsafe {
            std::slice::from_raw_parts(
                self.slot().add(at - KERNEL_HEADER_BYTES).as_ptr(),
                KERNEL_HEADER_BYTES + len,
            )
        };
        let (kernel_header, bytes) = bytes.split_at(KERNEL_HEADER_BYTES);
        let mut virtio_header = [0; HEADER_BYTES];
        virtio_header[..KERNEL_HEADER_BYTES].copy_from_slice(kernel_header);
        let Some(meta) = virtio::meta(virtio_header, len) else { return Some(Err(())) };
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then_some(VlanTag {
            protocol: if header.tp_vlan_tpid == 0x88a8
                && status & libc::TP_STATUS_VLAN_TPID_VALID != 0
            {
                TagProtocol::Service
            } else {
                TagProtocol::Customer
            },
            control: header.tp_vlan_tci,
        });
        Some(Ok(Copied { bytes, meta, tag }))
    }

    /// Takes the next packet: copies it into buffers, which it removes from `to`, and appends it to
    /// `out`. Returns its length in bytes, 0 for a packet that is dropped. `None` if there is no
    /// packet, or too few buffers.
    pub(crate) fn take(
        &mut self,
        spaces: &mut Spaces,
        to: &mut Target<'_>,
        out: &mut Vec<Received>,
    ) -> Option<usize> {
        let next = self.next()?;
        let most = to.limits.rx_buffer_bytes - to.limits.rx_headroom_bytes;
        let wanted = next.as_ref().map_or(1, |packet| packet.bytes.len().div_ceil(most).max(1));
        if wanted > to.buffers.len() {
            return None;
        }
        let copied = match next {
            Ok(packet) if wanted <= to.limits.rx_packet_buffers => packet.copy(spaces, to, out),
            _ => 0,
        };
        if copied > 0 {
            to.buffers.drain(..wanted);
        }
        self.release();
        Some(copied)
    }

    /// Gives the slot of the packet that [`PacketRing::next`] returned back to the kernel.
    fn release(&mut self) {
        // No slot has number 0.
        self.released = self.released.wrapping_add(1).max(1);
        self.release_number().store(self.released, Ordering::Relaxed);
        fence(Ordering::Release);
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.socket.slots;
    }

    /// Returns the socket, which is readable while there are packets.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the number of packets that the ring holds.
    pub(crate) fn slots(&self) -> usize {
        self.socket.slots as usize
    }

    /// Returns the number of packets that the ring had no room for, or that were dropped at the
    /// beginning, since the last call.
    pub(crate) fn take_drops(&mut self) -> u64 {
        self.socket.take_drops() + std::mem::take(&mut self.dropped)
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}
