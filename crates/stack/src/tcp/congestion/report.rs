//! What congestion control learns.

use std::time::Duration;

use super::super::sequence::Seq;

/// What an acknowledgement tells about the path.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Report {
    /// Bytes acknowledged for the first time.
    pub(in crate::tcp) bytes: u32,
    /// Their round trip time, if measured.
    pub(in crate::tcp) sample: Option<Duration>,
    pub(in crate::tcp) smoothed: Duration,
    /// The peer's acknowledgement, and the end of the sent data.
    pub(in crate::tcp) acknowledged: Seq,
    pub(in crate::tcp) sent_to: Seq,
}
