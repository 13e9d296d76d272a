//! The receiver of a packet.

/// An endpoint, named by session key and endpoint number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Destination {
    /// The session key.
    pub session: u32,
    /// The endpoint's number in its session.
    pub endpoint: u32,
}
