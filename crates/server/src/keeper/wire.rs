//! The messages between a server and its keeper.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(super) const HOLD_TCP: u32 = 1;
pub(super) const HOLD_UDP: u32 = 2;
pub(super) const RELEASE_TCP: u32 = 3;
pub(super) const RELEASE_UDP: u32 = 4;
pub(super) const PROBE: u32 = 5;
/// Hold the descriptor that comes with the request.
pub(super) const HOLD_DESCRIPTOR: u32 = 6;
/// The server is about to end: hold nothing.
pub(super) const END: u32 = 7;

/// A request to the keeper.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Request {
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
    pub(super) port: u32,
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
        Request { number: 0, kind, port, ip_version, ip: octets }
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

/// Sends a packet with at most one descriptor.
pub(super) fn send(
    socket: &OwnedFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let parts = [io::IoSlice::new(bytes)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL).map(|_| ())
}
