//! IPv6 addresses made from other addresses.

use std::net::Ipv6Addr;

/// Returns the solicited-node group of an address (RFC 4291, 2.7.1).
///
/// ```
/// let group = towpath_packet::ipv6::solicited_node("2001:db8::12:3456".parse().unwrap());
/// assert_eq!(group.to_string(), "ff02::1:ff12:3456");
/// ```
#[must_use]
pub const fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let bits = address.to_bits() & 0xff_ffff;
    Ipv6Addr::from_bits(0xff02_0000_0000_0000_0000_0001_ff00_0000 | bits)
}

/// Returns the link-local address made of an Ethernet address (RFC 4291, appendix A).
///
/// ```
/// let address = towpath_packet::ipv6::link_local([2, 0, 0, 0, 0, 9]);
/// assert_eq!(address.to_string(), "fe80::ff:fe00:9");
/// ```
#[must_use]
pub const fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    let octets = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    Ipv6Addr::from_bits(u128::from_be_bytes(octets))
}
