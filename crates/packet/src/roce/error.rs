//! What a RoCEv2 frame can be rejected for.

/// The first defect of a frame or of its UDP payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoceError {
    /// The frame or the UDP payload ends before its headers do.
    #[error("ends within its headers")]
    Short,
    /// The frame carries neither IPv4 nor IPv6, or has a VLAN tag.
    #[error("ethertype {0:#06x} is neither IPv4 nor IPv6")]
    Ethertype(u16),
    /// The IP version disagrees with the ethertype, or the IPv4 header has options.
    #[error("the IP header has another version or options")]
    IpHeader,
    /// The IP packet's length is under its header's or over the frame's.
    #[error("bad IP total or payload length")]
    IpLength,
    /// The IP packet is a fragment.
    #[error("a fragment of an IP packet")]
    Fragment,
    /// The packet is not UDP, or has an IPv6 extension header.
    #[error("IP protocol {0} is not UDP")]
    Protocol(u8),
    /// The datagram is to another port than 4791.
    #[error("UDP port {0} is not RoCEv2's")]
    Port(u16),
    /// The UDP length is not that of the IP packet's payload.
    #[error("the UDP length disagrees with the IP packet's")]
    UdpLength,
    /// The invariant CRC is not that of the packet.
    #[error("wrong invariant CRC")]
    Icrc,
    /// The transport version is not 0.
    #[error("transport version {0} instead of 0")]
    Version(u8),
    /// The opcode is unknown, or of a service other than those of [`Opcode`](super::Opcode).
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// The pad is longer than what follows the headers, or does not end at a multiple of 4 bytes.
    #[error("bad pad count")]
    Pad,
}
