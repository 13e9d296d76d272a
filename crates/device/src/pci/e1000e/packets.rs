//! Packets in the rings.

/// A packet that the device has.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) token: u64,
    pub(super) len: u32,
    /// The number of its descriptors.
    pub(super) descriptors: u32,
}

/// The oldest packet in the receive ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Oldest {
    /// The device has not written all of its buffers.
    None,
    /// The number of its buffers.
    Whole(u32),
    /// So many buffers, and its end is in none of them.
    TooLong(u32),
}
