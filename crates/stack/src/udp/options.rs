//! The options of a UDP socket.

use std::net::IpAddr;

use crate::ip;

/// The options of a UDP socket, which an application may change at any time. A hop limit of 0 counts as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdpOptions {
    /// The hop limit (IPv4's time to live) of packets to other destinations than multicast groups. Default 64.
    pub hop_limit: u8,
    /// The hop limit of packets to multicast groups. Default 1: no router forwards them.
    pub multicast_hop_limit: u8,
    /// The traffic class (IPv6) or type of service (IPv4), congestion notification included. Default 0.
    pub traffic_class: u8,
    /// `true` if the socket may send to broadcast addresses. Default `false`.
    pub broadcast: bool,
    /// `true` if the sockets of this host receive what this socket sends to groups that they have joined. Default `true`.
    pub multicast_loop: bool,
    /// `true` if the stack fragments a datagram that exceeds the path's MTU; otherwise sending it fails
    /// ([`SocketError::MessageTooLong`](crate::SocketError::MessageTooLong)). Default `true`.
    pub fragments: bool,
}

impl UdpOptions {
    /// Returns the hop limit of packets to an address.
    pub(super) fn hop_limit_to(&self, to: IpAddr) -> u8 {
        if to.is_multicast() { self.multicast_hop_limit } else { self.hop_limit }
    }
}

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions {
            hop_limit: ip::HOP_LIMIT,
            multicast_hop_limit: 1,
            traffic_class: 0,
            broadcast: false,
            multicast_loop: true,
            fragments: true,
        }
    }
}
