//! A packet socket with a ring (packet(7), `PACKET_RX_RING` with `TPACKET_V2`). It copies packets,
//! and the kernel receives them too.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;

use libc::{sock_filter, sock_fprog, tpacket_req};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use towpath_bpf::Program;

use super::socket_option::set;

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
    pub(super) ring_bytes: u32,
    pub(super) slot_bytes: u32,
    /// The number of slots in the ring, each for one packet.
    pub(super) slots: u32,
    /// The next mapping drops the packets that wait.
    pub(super) drops_waiting: AtomicBool,
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
