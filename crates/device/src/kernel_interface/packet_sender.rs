//! Sends packets through a packet socket, also those that AF_XDP cannot send: large ones of TCP,
//! which the kernel or the hardware segments (packet(7), `PACKET_VNET_HDR` in `linux/if_packet.h`).
//!
//! Unlike AF_XDP's packets, these pass the interface's queue (qdisc). `PACKET_QDISC_BYPASS` would
//! drop each packet that the kernel must segment, such as one of 64 KiB, or for a device without
//! TSO (`__dev_direct_xmit`, net/core/dev.c).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::packet_socket::{self, KERNEL_HEADER_BYTES, PACKET_VNET_HDR};
use super::socket_option::{enlarge_send_buffer, set};
use crate::check::PacketLimits;
use crate::{Capabilities, LARGE_FRAME_BYTES, MAX_PARTS, Packet, Spaces, gather, virtio};

/// The result for a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// The kernel has a copy of these bytes.
    Sent(usize),
    /// The packet is impossible, or the kernel dropped it.
    Dropped,
    /// The kernel has no room for it now, or the interface is down.
    Later {
        /// `true` if the interface is down.
        down: bool,
    },
}

/// Returns `true` if the kernel segments packets that such a socket sends on an interface of this kind.
/// It does not on a VLAN's whose tags the kernel inserts itself: `packet_snd` (net/packet/af_packet.c)
/// looks for the IP header behind as many bytes as a tagged packet has in front (`hard_header_len`).
pub(crate) fn segments(kind: Option<&str>) -> bool {
    kind != Some("vlan")
}

/// A socket that sends packets, large ones included, and receives nothing.
pub(crate) struct PacketSender(OwnedFd);

impl PacketSender {
    /// Opens the socket on an interface.
    pub(crate) fn open(index: u32) -> io::Result<PacketSender> {
        let fd = packet_socket::create()?;
        set(fd.as_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, &1i32)?;
        enlarge_send_buffer(fd.as_fd())?;
        packet_socket::bind(fd.as_fd(), index, 0)?;
        Ok(PacketSender(fd))
    }

    /// Returns the socket, which is writable while the kernel has room for packets.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sends a packet, whose parts may lie in any space.
    ///
    /// # Errors
    /// Fails if the interface is gone.
    pub(crate) fn send(&self, spaces: &Spaces, packet: &Packet<'_>) -> io::Result<Sending> {
        let limits = PacketLimits {
            can: Capabilities {
                tx_in_place: true,
                tx_checksum: true,
                tx_segmentation: true,
                tx_segmentation_ecn: true,
                ..Capabilities::default()
            },
            frame_bytes: LARGE_FRAME_BYTES,
            large_bytes: LARGE_FRAME_BYTES,
            parts: MAX_PARTS,
            registered: false,
            pool: None,
        };
        let Some(len) = limits.len_of(packet) else {
            return Ok(Sending::Dropped);
        };
        let header = &virtio::header(packet.meta)[..KERNEL_HEADER_BYTES];
        let written =
            gather::write(self.0.as_fd(), header, spaces, packet.parts, gather::padding(len));
        let Some(Err(error)) = written else {
            return Ok(if written.is_some() { Sending::Sent(len) } else { Sending::Dropped });
        };
        match error.raw_os_error() {
            // The socket's buffer is full.
            Some(libc::EAGAIN | libc::EINTR) => Ok(Sending::Later { down: false }),
            Some(libc::ENETDOWN) => Ok(Sending::Later { down: true }),
            Some(libc::ENXIO | libc::ENODEV) => Err(error),
            // ENOBUFS: the interface's queue (qdisc) or a filter behind it dropped the packet. To
            // send it again would hold up all packets of the device for as long as they do.
            // ENOMEM: the kernel could not segment it, or complete its checksum (`validate_xmit_skb`).
            // EINVAL, EMSGSIZE: the kernel refuses the headers or the length.
            _ => Ok(Sending::Dropped),
        }
    }
}
