//! The defects of a frame, one variant per counter.

/// The first defect of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[repr(u8)]
pub enum Malformed {
    /// The frame is shorter than an Ethernet header.
    #[error("shorter than an Ethernet header")]
    EthernetShort,
    /// The VLAN tag is truncated.
    #[error("truncated VLAN tag")]
    VlanShort,
    /// The ARP packet is truncated.
    #[error("truncated ARP packet")]
    ArpShort,
    /// The ARP packet is not about Ethernet and IPv4.
    #[error("ARP packet not about Ethernet and IPv4")]
    ArpKind,
    /// The IP header is truncated.
    #[error("truncated IP header")]
    IpShort,
    /// The IP header's version contradicts the ethertype.
    #[error("IP version disagrees with the ethertype")]
    IpVersion,
    /// The IPv4 header length is under 20 bytes or over the packet's.
    #[error("bad IPv4 header length")]
    IpHeaderLength,
    /// The IP length is over the frame's, or under the header's.
    #[error("bad IP total or payload length")]
    IpLength,
    /// A fragment ends after 65 535 bytes, or is not the last and no multiple of 8 bytes.
    #[error("bad fragment")]
    Fragment,
    /// An IPv6 extension header is truncated, or there are more than
    /// [`MAX_EXTENSION_HEADERS`](crate::headers::MAX_EXTENSION_HEADERS).
    #[error("bad chain of IPv6 extension headers")]
    ExtensionHeaders,
    /// A TCP, UDP, SCTP or ICMP header is truncated.
    #[error("truncated transport header")]
    TransportShort,
    /// The TCP header length is under 20 bytes or over the packet's.
    #[error("bad TCP header length")]
    TcpHeaderLength,
    /// The UDP length is under 8 bytes or over the packet's.
    #[error("bad UDP length")]
    UdpLength,
    /// The headers continue beyond the examined bytes. The frame may be valid; a caller that relies
    /// on the missing part treats the frame as malformed.
    #[error("headers longer than the examined bytes")]
    BeyondPrefix,
}

impl Malformed {
    /// All variants, in the order of [`Malformed::index`].
    pub const ALL: [Malformed; 14] = [
        Malformed::EthernetShort,
        Malformed::VlanShort,
        Malformed::ArpShort,
        Malformed::ArpKind,
        Malformed::IpShort,
        Malformed::IpVersion,
        Malformed::IpHeaderLength,
        Malformed::IpLength,
        Malformed::Fragment,
        Malformed::ExtensionHeaders,
        Malformed::TransportShort,
        Malformed::TcpHeaderLength,
        Malformed::UdpLength,
        Malformed::BeyondPrefix,
    ];

    /// Returns the variant's index in an array of counters, below the length of [`Malformed::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the defect of a header that needs `needed` bytes: the packet is too short, or the
    /// caller has not copied enough.
    #[inline]
    pub(crate) const fn missing(self, needed: usize, in_packet: usize) -> Malformed {
        if in_packet < needed { self } else { Malformed::BeyondPrefix }
    }
}
