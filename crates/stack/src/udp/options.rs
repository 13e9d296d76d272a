//! The options of a UDP socket.

use crate::ip;

/// What an application sets. A hop limit of 0 counts as 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The hop limit of packets to other destinations than multicast groups.
    pub(crate) hop_limit: u8,
    /// The hop limit of packets to multicast groups.
    pub(crate) multicast_hop_limit: u8,
    pub(crate) traffic_class: u8,
    /// `true` if the socket may send to broadcast addresses.
    pub(crate) broadcast: bool,
    /// `true` if this host receives what the socket sends to groups that this host listens to.
    pub(crate) multicast_loop: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            hop_limit: ip::HOP_LIMIT,
            multicast_hop_limit: 1,
            traffic_class: 0,
            broadcast: false,
            multicast_loop: true,
        }
    }
}
