//! The other end of a kernel interface: an AF_PACKET socket with virtio-net headers (packet(7),
//! PACKET_VNET_HDR), which carry metadata. The kernel removes VLAN tags and gives them beside the
//! frame (PACKET_AUXDATA); the socket puts them back.
//!
//! Unsafe code lives here because rustix has neither the address nor the options of such a socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use towpath_device::{Checksum, Meta, Segmentation, SegmentationKind, TagProtocol, VlanTag};

use super::far::FarEnd;

const HEADER_BYTES: usize = 10;

/// A far end that sends and receives all frames of a kernel interface, with their metadata.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    buffer: Vec<u8>,
}

impl PacketSocket {
    /// Opens a socket on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// When there is no such interface, or no CAP_NET_RAW in its namespace.
    pub fn open(interface: &str) -> io::Result<PacketSocket> {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol: with one, packets of other interfaces come in before the socket is bound.
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)?;
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
        set_option(&fd, libc::SOL_PACKET, libc::PACKET_AUXDATA, 1)?;
        // Room for frames that a test does not read at once. Without the right to force the size,
        // the kernel grants less, and a test that needs more reports the missing frame.
        let size = 64 << 20;
        set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, size)
            .or_else(|_| set_option(&fd, libc::SOL_SOCKET, libc::SO_RCVBUF, size))?;
        // SAFETY: all zeros is a valid value of this structure of integers.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = all;
        address.sll_ifindex = name_to_index(&fd, interface)? as i32;
        let size = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the pointer and length are those of a live address.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(PacketSocket { fd, buffer: vec![0; 128 * 1024] })
    }

    /// Reads a header and a frame into the buffer. Returns their length, and the tag that the kernel took
    /// off.
    fn read(&mut self) -> io::Result<(usize, Option<VlanTag>)> {
        let mut control = [0u64; 16];
        let mut into =
            libc::iovec { iov_base: self.buffer.as_mut_ptr().cast(), iov_len: self.buffer.len() };
        // SAFETY: all zeros is a valid value of this structure of integers and pointers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut into, 1);
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the pointers and lengths are those of memory that lives and that nothing else uses.
        let got = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, 0) };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        // SAFETY: the kernel has filled the message in, and its control memory lives.
        let Some(first) = (unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() }) else {
            return Ok((got, None));
        };
        if (first.cmsg_level, first.cmsg_type) != (libc::SOL_PACKET, libc::PACKET_AUXDATA) {
            return Ok((got, None));
        }
        // SAFETY: a control message of this kind has this structure behind its header.
        let beside: libc::tpacket_auxdata =
            unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(first).cast()) };
        let is_tagged = beside.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        let protocol = match i32::from(beside.tp_vlan_tpid) {
            libc::ETH_P_8021AD => TagProtocol::Service,
            _ => TagProtocol::Customer,
        };
        let tag = VlanTag { protocol, control: beside.tp_vlan_tci };
        Ok((got, is_tagged.then_some(tag)))
    }

    /// Sends a frame. Returns `true` if there was room for it.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn try_send(&self, frame: &[u8], meta: Meta) -> io::Result<bool> {
        let mut bytes = vec![0; HEADER_BYTES];
        if let Checksum::Partial { start, offset } = meta.checksum {
            bytes[0] = 1;
            bytes[6..8].copy_from_slice(&start.to_ne_bytes());
            bytes[8..10].copy_from_slice(&offset.to_ne_bytes());
        }
        if let Some(segmentation) = meta.segmentation {
            bytes[1] = match segmentation.kind {
                SegmentationKind::Tcp4 => 1,
                SegmentationKind::Tcp6 => 4,
            };
            bytes[2..4].copy_from_slice(&segmentation.header_bytes.to_ne_bytes());
            bytes[4..6].copy_from_slice(&segmentation.segment_bytes.to_ne_bytes());
        }
        bytes.extend_from_slice(frame);
        match rustix::io::write(&self.fd, &bytes) {
            Ok(_) => Ok(true),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends through the queue of the processor's number from now on. Otherwise the hash of a
    /// packet's flow chooses it.
    ///
    /// # Panics
    /// When the kernel refuses the option.
    pub fn send_by_processor(&self) {
        self.switch_on(libc::PACKET_QDISC_BYPASS);
    }

    /// Receives no frames that this host sends through the interface.
    ///
    /// # Panics
    /// When the kernel refuses the option.
    pub fn ignore_outgoing(&self) {
        /// `PACKET_IGNORE_OUTGOING` of `linux/if_packet.h`.
        const IGNORE_OUTGOING: i32 = 23;
        self.switch_on(IGNORE_OUTGOING);
    }

    fn switch_on(&self, name: i32) {
        set_option(&self.fd, libc::SOL_PACKET, name, 1).expect("an option of a packet socket");
    }
}

/// Sets an option that is an integer.
fn set_option(fd: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer and length are those of a live integer.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

impl FarEnd for PacketSocket {
    fn send(&mut self, frame: &[u8], meta: Meta) -> bool {
        let sent = self.try_send(frame, meta);
        sent.unwrap_or_else(|error| {
            panic!("packet socket: {error}, {meta:?}, {} bytes", frame.len())
        })
    }

    fn receive(&mut self) -> Option<(Vec<u8>, Meta)> {
        let (got, tag) = match self.read() {
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => panic!("packet socket: {error}"),
        };
        let (header, frame) = self.buffer[..got].split_at(HEADER_BYTES);
        let field = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let checksum = match header[0] {
            flags if flags & 1 != 0 => Checksum::Partial { start: field(6), offset: field(8) },
            2 => Checksum::Verified,
            _ => Checksum::Full,
        };
        let kind = match header[1] & 0x7f {
            0 => None,
            1 => Some(SegmentationKind::Tcp4),
            4 => Some(SegmentationKind::Tcp6),
            other => panic!("packet socket: segmentation kind {other}"),
        };
        let segmentation = kind.map(|kind| Segmentation {
            kind,
            segment_bytes: field(4),
            header_bytes: 0,
            ecn: header[1] & 0x80 != 0,
        });
        let (mut frame, meta) = (frame.to_vec(), Meta { checksum, segmentation });
        let Some(tag) = tag else { return Some((frame, meta)) };
        frame.splice(VlanTag::OFFSET..VlanTag::OFFSET, tag.to_bytes());
        Some((frame, meta.with_tag(VlanTag::BYTES as u16)))
    }

    fn takes_metadata(&self) -> bool {
        true
    }
}

/// A packet socket that sends no metadata, because the wire does not carry it. A veth carries it inside the
/// kernel only.
#[derive(Debug)]
pub struct FramesOnly(pub PacketSocket);

impl FarEnd for FramesOnly {
    fn send(&mut self, frame: &[u8], meta: Meta) -> bool {
        self.0.send(frame, meta)
    }

    fn receive(&mut self) -> Option<(Vec<u8>, Meta)> {
        self.0.receive()
    }

    fn takes_metadata(&self) -> bool {
        false
    }
}
