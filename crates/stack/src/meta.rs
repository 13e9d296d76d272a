//! What travels beside a frame's bytes, as `struct virtio_net_hdr` has it (virtio 1.2, 5.1.6).

/// The state of a frame's TCP, UDP or ICMPv6 checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// Written by the sender, not looked at since.
    #[default]
    Finished,
    /// Written by the sender and found right by a device.
    Verified,
    /// Not written: the field holds the pseudo-header's sum, and the sum of everything from
    /// `start` to the end of the packet belongs at `start + offset`.
    Unfinished {
        /// Where summing starts, in bytes from the Ethernet header's first byte.
        start: u16,
        /// Where the sum goes, in bytes from `start`.
        offset: u16,
    },
}

/// What a large packet is to be cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentationKind {
    /// TCP segments over IPv4.
    Tcp4,
    /// TCP segments over IPv6.
    Tcp6,
}

/// A packet larger than the MTU that the link is to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Into what.
    pub kind: SegmentationKind,
    /// Payload bytes of each segment; never 0.
    pub segment_bytes: u16,
    /// Ethernet, IP and TCP header together, in bytes.
    pub header_bytes: u16,
    /// The TCP header carries CWR. This stack never sets it.
    pub ecn: bool,
}

/// What travels beside a frame's bytes. The default says: finished, not large.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// The checksum's state.
    pub checksum: Checksum,
    /// What is to be cut, if anything. A packet with this always has [`Checksum::Unfinished`].
    pub segmentation: Option<Segmentation>,
}

impl Meta {
    /// The bytes are what goes on the wire.
    pub const FINISHED: Meta = Meta { checksum: Checksum::Finished, segmentation: None };

    /// Whether the TCP or UDP checksum is still to be looked at.
    pub(crate) fn must_verify(&self) -> bool {
        self.segmentation.is_none() && self.checksum == Checksum::Finished
    }
}
