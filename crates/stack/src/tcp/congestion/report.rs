//! What congestion control learns.

use std::time::Duration;

use super::super::sequence::Seq;

/// What an acknowledgement tells about the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// Bytes acknowledged for the first time.
    pub(crate) bytes: u32,
    /// Their round trip time, if measured.
    pub(crate) sample: Option<Duration>,
    pub(crate) smoothed: Duration,
    /// The peer's acknowledgement, and the end of the sent data.
    pub(crate) acknowledged: Seq,
    pub(crate) sent_to: Seq,
}
