//! Ethertypes and IP protocol numbers.

/// IPv4 (RFC 894).
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// ARP (RFC 826).
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// IPv6 (RFC 2464).
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// A VLAN tag (IEEE 802.1Q).
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// A service provider's VLAN tag (IEEE 802.1ad).
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

/// The IP protocol number of ICMP.
pub const PROTOCOL_ICMP: u8 = 1;
/// The IP protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// The IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;
/// The IP protocol number of ICMPv6.
pub const PROTOCOL_ICMPV6: u8 = 58;
/// The IP protocol number of SCTP.
pub const PROTOCOL_SCTP: u8 = 132;
