//! The addresses of endpoints here that other hosts reach.

use std::net::IpAddr;

/// An address of endpoints here that other hosts reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The link address.
    pub mac: [u8; 6],
    /// The bits of the network's prefix.
    pub bits: u8,
    /// The way to other networks.
    pub gateway: Option<IpAddr>,
}

impl OwnAddress {
    /// Returns the host that packets to an address go to first.
    pub(super) fn next_hop(&self, own: IpAddr, to: IpAddr) -> IpAddr {
        let (one, other, width) = match (own, to) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                (u128::from(one.to_bits()), u128::from(other.to_bits()), 32)
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits(), other.to_bits(), 128),
            _ => return to,
        };
        let differs = (one ^ other).checked_shr(width - u32::from(self.bits)).unwrap_or(0);
        if differs == 0 { to } else { self.gateway.unwrap_or(to) }
    }
}
