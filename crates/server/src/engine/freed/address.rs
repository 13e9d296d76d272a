//! The addresses of one ended session, and how much of a packet for them the engine reads.

/// The bytes of a packet that the engine reads: Ethernet, IP and transport headers, but for unusual chains of extensions.
pub(super) const BEGINNING_BYTES: usize = 128;

/// The addresses of an ended session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedAddress {
    /// The MAC address.
    pub mac: [u8; 6],
    /// The IPv4 address, and the length of its prefix.
    pub ipv4: Option<(u32, u8)>,
    /// The IPv6 addresses.
    pub ipv6: [Option<u128>; 2],
}
