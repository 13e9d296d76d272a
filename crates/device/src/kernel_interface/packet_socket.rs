//! The packet socket beside an XDP program (packet(7), `PACKET_RX_RING` with `TPACKET_V2`).
//!
//! An XDP program cannot both take a packet and leave it to the kernel. So packets to groups always
//! pass to the kernel, and the driver takes its copies from this socket. The socket also holds the
//! device's own MAC addresses and promiscuous mode, which vanish with it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use libc::{sock_filter, sock_fprog, tpacket_req, tpacket2_hdr};
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use towpath_bpf::Program;
use towpath_packet::{TagProtocol, VlanTag};

use super::socket_option::set;
use crate::virtio::{self, HEADER_BYTES};
use crate::{Filter, Meta};

/// The size of the ring of a socket for packets to groups, in bytes.
pub(crate) const RING_BYTES: u32 = 4 << 20;
/// The smallest block of the ring, in bytes.
const BLOCK_BYTES: u32 = 64 << 10;
/// Bytes of a frame before the packet: the header, the address, the virtio-net header and gaps.
const BEFORE_PACKET_BYTES: usize = 192;
/// Bytes of the virtio-net header in front of a packet (`struct virtio_net_hdr`).
pub(crate) const KERNEL_HEADER_BYTES: usize = 10;
/// `PACKET_VNET_HDR`, `PACKET_IGNORE_OUTGOING` (`linux/if_packet.h`).
pub(crate) const PACKET_VNET_HDR: i32 = 15;
const PACKET_IGNORE_OUTGOING: i32 = 23;
/// All bytes of a packet: what a classic filter returns for a packet to keep.
const KEEP: u32 = u32::MAX;

/// The socket, which the control part configures and the queue reads.
pub(crate) struct PacketSocket {
    fd: OwnedFd,
    index: u32,
    ring_bytes: u32,
    slot_bytes: u32,
    /// The number of slots in the ring, each for one packet.
    slots: u32,
    /// The slot from which the next mapping reads.
    next: AtomicU32,
}

/// What the socket copies.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// The groups' addresses.
    groups: Vec<[u8; 6]>,
    all_groups: bool,
    everything: bool,
}

impl Wanted {
    /// Adds or removes a filter. Returns `true` if it changes what the socket copies.
    pub(crate) fn change(&mut self, filter: &Filter, wanted: bool) -> bool {
        match filter {
            Filter::Address(mac) if is_group(mac) => {
                self.groups.retain(|one| one != mac);
                if wanted {
                    self.groups.push(*mac);
                }
            }
            Filter::AllGroups => self.all_groups = wanted,
            Filter::Everything => self.everything = wanted,
            Filter::Address(_) | Filter::Flow(_) => return false,
        }
        true
    }

    /// Returns the classic BPF program (`linux/filter.h`) that keeps the wanted packets.
    fn program(&self) -> Vec<sock_filter> {
        const LOAD_WORD: u16 = 0x20;
        const LOAD_HALF: u16 = 0x28;
        const LOAD_BYTE: u16 = 0x30;
        const JUMP_EQUAL: u16 = 0x15;
        const JUMP_BITS: u16 = 0x45;
        const RETURN: u16 = 0x06;
        let one = |code, jt, jf, k| sock_filter { code, jt, jf, k };
        let mut program = Vec::new();
        if self.everything {
            program.push(one(RETURN, 0, 0, KEEP));
        }
        if self.all_groups {
            program.push(one(LOAD_BYTE, 0, 0, 0));
            program.push(one(JUMP_BITS, 0, 1, 1));
            program.push(one(RETURN, 0, 0, KEEP));
        }
        for [a, b, c, d, e, f] in &self.groups {
            program.push(one(LOAD_WORD, 0, 0, 0));
            program.push(one(JUMP_EQUAL, 0, 3, u32::from_be_bytes([*a, *b, *c, *d])));
            program.push(one(LOAD_HALF, 0, 0, 4));
            program.push(one(JUMP_EQUAL, 0, 1, u32::from(u16::from_be_bytes([*e, *f]))));
            program.push(one(RETURN, 0, 0, KEEP));
        }
        program.push(one(RETURN, 0, 0, 0));
        program
    }
}

/// Returns `true` for the address of a group: multicast or broadcast.
pub(crate) fn is_group(mac: &[u8; 6]) -> bool {
    mac[0] & 1 != 0
}

/// Creates a packet socket. With protocol 0 it receives nothing until [`bind`] gives it another one.
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
            next: AtomicU32::new(0),
        })
    }

    /// Opens a socket on an interface, which at first copies nothing. `frame_bytes`: the longest
    /// frame. `ring_bytes`: the size of the ring.
    pub(crate) fn open(
        index: u32,
        frame_bytes: usize,
        ring_bytes: u32,
    ) -> io::Result<PacketSocket> {
        let slot_bytes = (frame_bytes + BEFORE_PACKET_BYTES).next_power_of_two() as u32;
        let slots = ring_bytes / slot_bytes;
        let socket =
            PacketSocket { ring_bytes, slot_bytes, slots, ..PacketSocket::without_packets(index)? };
        socket.set_filter(&Wanted::default())?;
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

    /// Copies the packets that a program keeps from now on.
    pub(crate) fn attach(&self, program: &Program) -> io::Result<()> {
        let program = program.as_fd().as_raw_fd();
        set(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_BPF, &program)
    }

    /// Copies the wanted packets from now on.
    pub(crate) fn set_filter(&self, wanted: &Wanted) -> io::Result<()> {
        let mut program = wanted.program();
        let length = u16::try_from(program.len()).map_err(|_| io::ErrorKind::StorageFull)?;
        let program = sock_fprog { len: length, filter: program.as_mut_ptr() };
        // The kernel reads the program's instructions during the call.
        set(self.fd.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
    }

    /// Makes the interface receive packets to one of the device's own addresses, or no longer.
    pub(crate) fn receive_for(&self, mac: &[u8; 6], wanted: bool) -> io::Result<()> {
        self.membership(libc::PACKET_MR_UNICAST, mac, wanted)
    }

    /// Makes the interface receive packets to a group, or no longer. The kernel joins only groups of
    /// its own sockets, and a device drops the others.
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

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A packet in the ring.
pub(crate) struct Copied<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) meta: Meta,
    pub(crate) tag: Option<VlanTag>,
}

/// The socket's ring, mapped for as long as this value lives.
pub(crate) struct PacketRing {
    socket: Arc<PacketSocket>,
    map: NonNull<u8>,
    map_bytes: usize,
    /// The slot of the next packet.
    next: u32,
}

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
        // An earlier mapping may have taken packets.
        let next = socket.next.load(Ordering::Relaxed);
        Ok(PacketRing { socket, map, map_bytes, next })
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

    /// Returns `true` if there is a packet.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Returns the next packet, which stays until [`PacketRing::release`]. `None` if there is none;
    /// an error for one to drop: cut off, or with metadata that does not fit.
    pub(crate) fn next(&self) -> Option<Result<Copied<'_>, ()>> {
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
        // SAFETY: the range is inside the frame, as just checked. The kernel does not write it until
        // `release`, which takes `&mut self`.
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

    /// Gives the slot of the packet that [`PacketRing::next`] returned back to the kernel.
    pub(crate) fn release(&mut self) {
        fence(Ordering::Release);
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % self.socket.slots;
        self.socket.next.store(self.next, Ordering::Relaxed);
    }

    /// Returns the socket, which is readable while there are packets.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the number of packets that the ring had no room for since the last call.
    pub(crate) fn take_drops(&self) -> u64 {
        self.socket.take_drops()
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no reference into it outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program of loads, comparisons and returns on the beginning of a frame.
    fn keeps(program: &[sock_filter], frame: &[u8; 6]) -> bool {
        let (mut at, mut value) = (0, 0);
        loop {
            let one = &program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { one.jt } else { one.jf });
            match one.code {
                0x20 => value = u32::from_be_bytes(*frame[one.k as usize..].first_chunk().unwrap()),
                0x28 => {
                    value =
                        u16::from_be_bytes(*frame[one.k as usize..].first_chunk().unwrap()).into()
                }
                0x30 => value = frame[one.k as usize].into(),
                0x15 => at += jump(value == one.k),
                0x45 => at += jump(value & one.k != 0),
                0x06 => return one.k != 0,
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn the_filter_keeps_what_is_wanted() {
        let (one, two, own) = ([1, 0, 94, 1, 2, 3], [1, 0, 94, 1, 2, 4], [2, 0, 94, 1, 2, 3]);
        let mut wanted = Wanted::default();
        let kept =
            |wanted: &Wanted| [one, two, [0xff; 6], own].map(|mac| keeps(&wanted.program(), &mac));
        assert_eq!(kept(&wanted), [false; 4]);
        assert!(wanted.change(&Filter::Address(one), true));
        assert_eq!(kept(&wanted), [true, false, false, false]);
        assert!(wanted.change(&Filter::Address(two), true));
        assert_eq!(kept(&wanted), [true, true, false, false]);
        assert!(wanted.change(&Filter::Address(one), false));
        assert_eq!(kept(&wanted), [false, true, false, false]);
        assert!(wanted.change(&Filter::AllGroups, true));
        assert_eq!(kept(&wanted), [true, true, true, false]);
        assert!(wanted.change(&Filter::Everything, true));
        assert_eq!(kept(&wanted), [true; 4]);
        assert!(!wanted.change(&Filter::Address(own), true));
    }
}
