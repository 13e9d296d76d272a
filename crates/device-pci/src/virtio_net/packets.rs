//! Packets in the transmit ring.

/// The most parts of a packet to send.
pub(super) const MOST_PARTS: usize = 20;

/// A packet that the device has.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacketInFlight {
    pub(super) token: u64,
    pub(super) len: u32,
    /// Its number, in the order in which the device took packets.
    pub(super) number: u64,
}
