//! A record of sent data, and what an acknowledgement tells of it.

use std::time::Duration;

use super::sequence::Seq;
use crate::Instant;

/// The peer has reported the data as received.
pub(super) const SACKED: u8 = 1;
/// The data counts as lost, and is to be sent again.
pub(super) const LOST: u8 = 2;
/// The data was sent more than once.
pub(super) const RETRANSMITTED: u8 = 4;

/// Data that was sent at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) start: Seq,
    pub(super) end: Seq,
    pub(super) sent_at: Instant,
    pub(super) state: u8,
}

impl Record {
    pub(super) fn len(&self) -> u32 {
        self.end.since(self.start)
    }

    pub(super) fn is(&self, state: u8) -> bool {
        self.state & state != 0
    }
}

/// Returns `true` if the first record was sent after the second, by time and sequence number
/// (RFC 8985, 6.2).
pub(super) fn later(one: (Instant, Seq), other: (Instant, Seq)) -> bool {
    one.0 > other.0 || one.0 == other.0 && one.1.after(other.1)
}

/// What one acknowledgement told.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivery {
    /// Bytes that it reported for the first time.
    pub(super) bytes: u32,
    /// The shortest round trip time of the newly delivered records that were sent once.
    pub(super) sample: Option<Duration>,
    /// `true` if a selective acknowledgement reported new data.
    pub(super) selected: bool,
    /// `true` if the peer reported that data arrived twice (RFC 2883).
    pub(super) duplicate: bool,
}

/// Returns `true` if data sent at the two times can share a record: the difference is small beside
/// the round trip, and so beside the reordering window.
pub(super) fn is_one_time(first: Instant, now: Instant, least: Duration) -> bool {
    now.since(first) <= least / 32
}
