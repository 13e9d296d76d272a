//! Sends large packets of TCP, which AF_XDP cannot: a packet socket takes them in one piece, and the
//! kernel or the hardware segments them (packet(7), `PACKET_VNET_HDR` in `linux/if_packet.h`).
//!
//! Unlike AF_XDP's packets, these pass the interface's queue (qdisc). `PACKET_QDISC_BYPASS` would drop
//! each packet that the kernel must segment, such as one of 64 KiB, or for a device without TSO
//! (`__dev_direct_xmit`, net/core/dev.c).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::socket::{SEND_BUFFER_BYTES, set};
use crate::check::PacketLimits;
use crate::{
    Capabilities, ETHERNET_HEADER_BYTES, LARGE_PACKET_BYTES, MAX_PARTS, Packet, Spaces,
    VLAN_TAG_BYTES, virtio,
};

/// Bytes of the virtio-net header that the kernel takes (`struct virtio_net_hdr`).
const KERNEL_HEADER_BYTES: usize = 10;
/// `PACKET_VNET_HDR` (`linux/if_packet.h`).
const PACKET_VNET_HDR: i32 = 15;

/// The longest frame: a packet of 64 KiB with its Ethernet header and two tags.
const LARGE_FRAME_BYTES: usize = LARGE_PACKET_BYTES + ETHERNET_HEADER_BYTES + 2 * VLAN_TAG_BYTES;

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Large {
    /// The kernel has a copy of these bytes.
    Sent(usize),
    /// Neither the kernel nor a wire takes such a packet.
    Impossible,
    /// The kernel has no room for it now, or the interface is down.
    Later {
        /// `true` if the interface is down.
        down: bool,
    },
}

/// A socket that sends large packets and receives nothing.
pub(super) struct LargeSender(OwnedFd);

impl LargeSender {
    /// Opens the socket on an interface.
    pub(super) fn open(index: u32) -> io::Result<LargeSender> {
        let fd = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        set(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1)?;
        set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES)
            .or_else(|_| set(&fd, libc::SOL_SOCKET, libc::SO_SNDBUF, SEND_BUFFER_BYTES))?;
        // SAFETY: all zeros is a valid value of this structure of integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        // Protocol 0: the socket receives nothing.
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        let size = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the pointer and the length are those of a live address.
        let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(LargeSender(fd)) }
    }

    /// Sends a packet, whose parts may lie in any space.
    ///
    /// # Errors
    /// Fails if the interface is gone.
    pub(super) fn send(&self, spaces: &Spaces, packet: &Packet<'_>) -> io::Result<Large> {
        let limits = PacketLimits {
            can: Capabilities {
                tx_in_place: true,
                tx_checksum: true,
                tx_segmentation: true,
                ..Capabilities::default()
            },
            frame_bytes: LARGE_FRAME_BYTES,
            large_bytes: LARGE_FRAME_BYTES,
            parts: MAX_PARTS,
            registered: false,
            pool: None,
        };
        let Some(len) = limits.packet_len(packet.parts, packet.meta) else {
            return Ok(Large::Impossible);
        };
        let header = virtio::header(packet.meta);
        let piece = |start: *const u8, len: usize| libc::iovec {
            iov_base: start.cast_mut().cast(),
            iov_len: len,
        };
        let mut pieces = [piece(std::ptr::null(), 0); MAX_PARTS + 1];
        pieces[0] = piece(header.as_ptr(), KERNEL_HEADER_BYTES);
        for (place, part) in pieces[1..].iter_mut().zip(packet.parts) {
            let Ok(from) = spaces.readable(part.space, part.offset, part.len) else {
                return Ok(Large::Impossible);
            };
            *place = piece(from.as_ptr(), part.len as usize);
        }
        let count = (packet.parts.len() + 1) as libc::c_int;
        // SAFETY: the first `count` pieces name live memory: the header on this stack, and parts that
        // lie in their spaces as just checked. The kernel only reads them, during the call.
        let put = unsafe { libc::writev(self.0.as_raw_fd(), pieces.as_ptr(), count) };
        if put >= 0 {
            return Ok(Large::Sent(len));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            // ENOBUFS: the interface's queue (qdisc) is full.
            Some(libc::EAGAIN | libc::EINTR | libc::ENOBUFS | libc::ENOMEM) => {
                Ok(Large::Later { down: false })
            }
            Some(libc::ENETDOWN) => Ok(Large::Later { down: true }),
            Some(libc::ENXIO | libc::ENODEV) => Err(error),
            // EINVAL, EMSGSIZE: the kernel refuses the headers or the length.
            _ => Ok(Large::Impossible),
        }
    }
}
