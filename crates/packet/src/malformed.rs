//! The defects of a frame, told apart so that they can be counted.

/// The first defect of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
#[repr(u8)]
pub enum Malformed {
    /// Shorter than an Ethernet header.
    #[error("shorter than an Ethernet header")]
    EthernetShort,
    /// A VLAN tag that is cut off.
    #[error("VLAN tag cut off")]
    VlanShort,
    /// An ARP packet that is cut off.
    #[error("ARP packet cut off")]
    ArpShort,
    /// An ARP packet that is not about Ethernet and IPv4.
    #[error("ARP packet not about Ethernet and IPv4")]
    ArpKind,
    /// An IP header that is cut off.
    #[error("IP header cut off")]
    IpShort,
    /// The IP header's version contradicts the ethertype.
    #[error("IP version disagrees with the ethertype")]
    IpVersion,
    /// An IPv4 header length under 20 bytes or over the packet's.
    #[error("bad IPv4 header length")]
    IpHeaderLength,
    /// An IP length over the frame's, or under the header's.
    #[error("bad IP total or payload length")]
    IpLength,
    /// A fragment that ends after 65 535 bytes, or one in the middle that is no multiple of 8.
    #[error("bad fragment")]
    Fragment,
    /// An IPv6 extension header that is cut off, or more of them than
    /// [`MAX_EXTENSION_HEADERS`](crate::headers::MAX_EXTENSION_HEADERS).
    #[error("bad chain of IPv6 extension headers")]
    ExtensionHeaders,
    /// A TCP, UDP, SCTP or ICMP header that is cut off.
    #[error("transport header cut off")]
    TransportShort,
    /// A TCP header length under 20 bytes or over the packet's.
    #[error("bad TCP header length")]
    TcpHeaderLength,
    /// A UDP length under 8 bytes or over the packet's.
    #[error("bad UDP length")]
    UdpLength,
    /// The headers go on after the bytes looked at. The frame may be valid; a caller that relies on
    /// the missing part treats it as malformed.
    #[error("headers longer than the bytes looked at")]
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

    /// Returns its index in an array of counters: 0 up to the length of [`Malformed::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the defect of a header that needs `needed` bytes: the packet is too short, or the
    /// caller had not copied enough.
    #[inline]
    pub(crate) const fn missing(self, needed: usize, in_packet: usize) -> Malformed {
        if in_packet < needed { self } else { Malformed::BeyondPrefix }
    }
}
