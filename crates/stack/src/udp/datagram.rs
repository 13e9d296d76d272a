//! Datagrams with their header fields.

use std::net::{IpAddr, SocketAddr};

use super::socket::HEADER_BYTES;
use crate::SocketError;
use crate::bindings::Bound;
use crate::host::{Host, Route};

/// A datagram taken from a socket's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The bytes copied.
    pub len: usize,
    /// The length of each datagram among these bytes, in bytes; the last one may be shorter. It is `len` for a single
    /// datagram.
    pub stride: usize,
    /// The datagrams' length; more than `len` if the buffer was too short for a single datagram and the rest is lost.
    pub datagram_bytes: usize,
    /// The sender.
    pub from: SocketAddr,
    /// The destination address.
    pub to: IpAddr,
    /// The type of service (IPv4) or traffic class (IPv6), congestion notification included.
    pub traffic_class: u8,
    /// The time to live (IPv4) or hop limit (IPv6) with which the datagram arrived.
    pub hop_limit: u8,
}

/// A datagram to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<'a> {
    /// Its bytes.
    pub data: &'a [u8],
    /// The receiver; `None` for the socket's peer.
    pub to: Option<SocketAddr>,
    /// The source address: one of this host's. `None` for the address of the socket, or else that of the route.
    pub from: Option<IpAddr>,
    /// The type of service or traffic class; `None` for that of the socket.
    pub traffic_class: Option<u8>,
    /// The hop limit, 1 to 255; `None` for that of the socket.
    pub hop_limit: Option<u8>,
    /// `None` for one datagram. Otherwise each `segment_bytes` bytes of the data become a datagram, and the rest the last
    /// one; 0 counts as 1.
    pub segment_bytes: Option<usize>,
}

impl<'a> Outgoing<'a> {
    /// Returns a datagram with the socket's own settings.
    #[must_use]
    pub fn new(data: &'a [u8], to: Option<SocketAddr>) -> Outgoing<'a> {
        Outgoing { data, to, from: None, traffic_class: None, hop_limit: None, segment_bytes: None }
    }
}

/// Returns the source address of a datagram: the one that the application names, that of the socket, or that of the route.
pub(super) fn source(
    host: &Host,
    bound: &Bound,
    route: &Route,
    named: Option<IpAddr>,
) -> Result<IpAddr, SocketError> {
    let named = named.map(|named| bound.meant(SocketAddr::new(named, 0)).ip());
    match named {
        Some(named) if named.is_ipv4() != route.src.is_ipv4() => Err(SocketError::InvalidAddress),
        Some(named) if !host.is_ours(named) => Err(SocketError::AddressNotAvailable),
        Some(named) => Ok(named),
        None if !host.is_ours(bound.local.ip()) => Ok(route.src),
        None => Ok(bound.local.ip()),
    }
}

/// Returns the header of a datagram, without its checksum. `ports`: the source and the destination; `len`: the length of
/// the header and the data, in bytes.
pub(super) fn header((from_port, to_port): (u16, u16), len: usize) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..2].copy_from_slice(&from_port.to_be_bytes());
    header[2..4].copy_from_slice(&to_port.to_be_bytes());
    header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    header
}
