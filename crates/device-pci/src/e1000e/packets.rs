//! Packets in the transmit ring.

/// A packet that the device has.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketInFlight {
    pub(super) token: u64,
    pub(super) len: u32,
    /// The number of its descriptors.
    pub(super) descriptors: u32,
}
