//! One freed lease, and the part of a packet that the engine reads for an answer.

/// The bytes of a packet that the engine reads: the Ethernet, IP and transport headers, except behind long chains of
/// extension headers.
pub(super) const BEGINNING_BYTES: usize = 128;

/// The lease of an ended session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedLease {
    /// The MAC address.
    pub mac: [u8; 6],
    /// The IPv4 address, and the length of its prefix.
    pub ipv4: Option<(u32, u8)>,
    /// The IPv6 addresses.
    pub ipv6: [Option<u128>; 2],
}
