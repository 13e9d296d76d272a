//! The addresses of a session, and the application that holds them.

use std::net::{Ipv4Addr, Ipv6Addr};

use towpath_engine::rights::Addresses;
use towpath_packet::ipv6::link_local;

/// Addresses given to a session, by index in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(super) host_number: u32,
    /// `true` if the addresses are the host's own, and the MAC address the device's.
    pub shared: bool,
    /// The session's MAC address; locally administered, unless it is shared.
    pub mac: [u8; 6],
    /// The session's IPv4 address and prefix length.
    pub ipv4: Option<(Ipv4Addr, u8)>,
    /// The IPv4 gateway.
    pub ipv4_gateway: Option<Ipv4Addr>,
    /// The session's IPv6 address and prefix length.
    pub ipv6: Option<(Ipv6Addr, u8)>,
    /// The IPv6 gateway.
    pub ipv6_gateway: Option<Ipv6Addr>,
}

impl Lease {
    /// Returns the index of the addresses in the pool; 0 for shared ones.
    pub(crate) fn host_number(&self) -> u32 {
        self.host_number
    }

    /// Returns a lease of the host's own addresses. It comes from no pool.
    #[must_use]
    pub(crate) fn shared(
        mac: [u8; 6],
        ipv4: Option<(Ipv4Addr, u8)>,
        ipv6: Option<(Ipv6Addr, u8)>,
    ) -> Lease {
        Lease {
            host_number: 0,
            shared: true,
            mac,
            ipv4,
            ipv4_gateway: None,
            ipv6,
            ipv6_gateway: None,
        }
    }

    /// Returns the addresses that a session with this lease may send from.
    #[must_use]
    pub(crate) fn addresses(&self) -> Addresses {
        Addresses {
            ipv4: self.ipv4.map(|(ip, _)| ip.to_bits()),
            ipv6: [
                self.ipv6.map(|(ip, _)| ip.to_bits()),
                (!self.shared).then(|| link_local(self.mac).to_bits()),
            ],
        }
    }
}

/// The holder of a lease: an application, identified by its user and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    /// The application's user.
    pub uid: u32,
    /// The name of the application's session.
    pub name: String,
}
