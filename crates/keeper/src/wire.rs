//! The requests of a server to its keeper, and how they travel beside the store's messages.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::notify::MESSAGE_DESCRIPTORS;

pub(super) const HOLD_TCP: u32 = 1;
pub(super) const HOLD_UDP: u32 = 2;
pub(super) const RELEASE_TCP: u32 = 3;
pub(super) const RELEASE_UDP: u32 = 4;
pub(super) const PROBE: u32 = 5;
/// Tell how many descriptors the keeper holds at most.
pub(super) const LIMIT: u32 = 6;
/// Make an AF_XDP socket for the interface.
pub(super) const XDP_SOCKET: u32 = 8;
/// The server is about to end: hold nothing.
pub(super) const END: u32 = 7;

/// Allow requests for AF_XDP sockets from now on, which poll the hardware if the port is 1. Only
/// before the server serves for the first time.
pub(super) const ALLOW_XDP: u32 = 9;

/// The keeper's first message to a server, after the descriptors that it holds: that was all.
pub(super) const ALL_GIVEN: &[u8] = &[2];

/// A request to the keeper.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Request {
    /// Zero, with which no text begins: messages to the store use the same connection.
    pub(super) mark: u32,
    /// A number that the answer repeats.
    pub(super) number: u32,
    pub(super) kind: u32,
    pub(super) port: u16,
    /// 4 or 6.
    pub(super) ip_version: u16,
    /// An IPv4 address in the first four bytes.
    pub(super) ip: [u8; 16],
}

/// The keeper's answer; a held port comes with its socket.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Answer {
    /// The request's.
    pub(super) number: u32,
    /// An error number, or 0.
    pub(super) errno: i32,
    /// The held port, or the number that the request asks for.
    pub(super) value: u32,
}

impl Request {
    pub(super) fn new(kind: u32, ip: IpAddr, port: u16) -> Request {
        let mut octets = [0; 16];
        let ip_version = match ip {
            IpAddr::V4(ip) => {
                octets[..4].copy_from_slice(&ip.octets());
                4
            }
            IpAddr::V6(ip) => {
                octets = ip.octets();
                6
            }
        };
        Request { mark: 0, number: 0, kind, port, ip_version, ip: octets }
    }

    /// Returns a request without an address.
    pub(super) fn bare(kind: u32) -> Request {
        Request::new(kind, IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        match self.ip_version {
            4 => self.ip.first_chunk::<4>().map(|octets| IpAddr::from(*octets)),
            6 => Some(Ipv6Addr::from(self.ip).into()),
            _ => None,
        }
    }
}

/// What a peer sent: bytes in the buffer, and the descriptors with them.
pub(super) struct Received {
    pub(super) bytes: usize,
    pub(super) descriptors: Vec<OwnedFd>,
    /// `true` if more bytes or descriptors came than there is room for.
    pub(super) is_cut: bool,
}

/// Receives a message. A length of 0 is the peer's end.
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Received, Errno> {
    receive_with(socket, buffer, RecvFlags::empty())
}

/// Receives a message with flags.
pub(super) fn receive_with(
    socket: &OwnedFd,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(buffer)];
    let received = recvmsg(socket, &mut parts, &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    Ok(Received { bytes: received.bytes, descriptors, is_cut })
}

/// Sends a packet with at most one descriptor.
pub(super) fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let parts = [io::IoSlice::new(bytes)];
    loop {
        match sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL | flags) {
            Err(Errno::INTR) => {}
            sent => return sent.map(|_| ()),
        }
    }
}

/// Returns `true` for the error of a peer that has ended.
pub(super) fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET)
}
