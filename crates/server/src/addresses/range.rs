//! The networks from which the server gives addresses, and the addresses of each by index.

use std::net::{Ipv4Addr, Ipv6Addr};

/// The networks from which the server gives addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Subnets {
    /// IPv4.
    pub ipv4: Option<Subnet<Ipv4Addr>>,
    /// IPv6.
    pub ipv6: Option<Subnet<Ipv6Addr>>,
}

/// A network from which the server gives addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet<A> {
    /// The address of the host, or of the gateway, in this network. No application gets it.
    pub own: A,
    /// The prefix length: 1 to 30 for IPv4, 1 to 120 for IPv6.
    pub bits: u8,
    /// The gateway to other networks.
    pub gateway: Option<A>,
    /// The first and the last address for applications; `None` for all of the network.
    pub leases: Option<(A, A)>,
}

impl<A: Copy> Subnet<A> {
    /// Creates a subnet whose addresses are all for applications, but for that of its gateway.
    #[must_use]
    pub const fn new(gateway: A, bits: u8) -> Subnet<A> {
        Subnet { own: gateway, bits, gateway: Some(gateway), leases: None }
    }
}

/// The addresses of one family that a pool gives, as numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) first: u128,
    /// The number of addresses, those of host and gateway included.
    pub(super) count: u128,
    pub(super) bits: u8,
    /// The addresses that no application gets.
    pub(super) excluded: [Option<u128>; 2],
    pub(super) gateway: Option<u128>,
}

impl Range {
    /// Returns the range of a subnet of addresses of `width` bits; `None` if it has no room.
    pub(super) fn new<A: Copy>(
        subnet: &Subnet<A>,
        width: u8,
        most: u8,
        number: impl Fn(A) -> u128,
    ) -> Option<Range> {
        let bits = subnet.bits;
        if !(1..=most).contains(&bits) {
            return None;
        }
        let own = number(subnet.own);
        let hosts = (1u128 << (width - bits)) - 1;
        let network = own & !hosts;
        // The network's first address is no host's, and the last one is IPv4's for broadcast.
        let (lowest, highest) = (network + 1, network + hosts - 1);
        let (first, last) = match subnet.leases {
            Some((first, last)) => (number(first).max(lowest), number(last).min(highest)),
            None => (lowest, highest),
        };
        let gateway = subnet.gateway.map(number);
        let count = last.checked_sub(first)? + 1;
        Some(Range { first, count, bits, excluded: [Some(own), gateway], gateway })
    }

    /// Returns the address of an index, from 1.
    pub(super) fn at(&self, index: u32) -> u128 {
        self.first + u128::from(index) - 1
    }

    /// Returns the index of an address.
    pub(super) fn index_of(&self, address: u128) -> Option<u32> {
        let index = address.checked_sub(self.first)?;
        u32::try_from(index).ok()?.checked_add(1).filter(|_| index < self.count)
    }

    pub(super) fn excludes(&self, index: u32) -> bool {
        self.excluded.contains(&Some(self.at(index)))
    }
}
