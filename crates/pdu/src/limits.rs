//! The limits of a receiver.

use std::time::Duration;

use crate::format::MAX_PDU_BYTES;

/// The default limit of incomplete PDUs per source.
pub(crate) const PARTIALS_OF_SOURCE: usize = 16;
/// The maximum of [`Limits::partials`].
const MAX_PARTIALS: usize = 1 << 16;
/// The maximum of [`Limits::finished`].
const MAX_FINISHED: usize = 1 << 20;

/// The limits of a receiver. Each is at least what one PDU needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Incomplete PDUs, all together, 1 to 65 536. At the limit the receiver evicts the oldest one.
    /// It allocates tables of this size at the start.
    pub partials: usize,
    /// Incomplete PDUs per source. At the limit the receiver evicts the oldest of that source. A
    /// [`PduEndpoint`](crate::PduEndpoint) sends parts of at most 8 at a time: a lower limit here
    /// loses PDUs even on a network without faults.
    pub partials_of_source: usize,
    /// Bytes of reassembly memory; at least 64 KiB. At the limit the receiver evicts the oldest
    /// PDU. From its first fragment on, a PDU takes memory for its full length, rounded up to a
    /// power of two from 256 bytes.
    pub bytes: usize,
    /// The time that a PDU may take from its first fragment to its last, and for which the receiver
    /// remembers finished PDUs.
    pub time: Duration,
    /// The longest PDU that the receiver accepts, in bytes, up to 65 536.
    pub pdu_bytes: usize,
    /// Finished PDUs that the receiver remembers, up to 2^20, to drop repeated fragments of them.
    /// It allocates a table of this size at the start. With 0, the receiver may deliver a PDU twice
    /// if every fragment comes twice.
    pub finished: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            partials: 64,
            partials_of_source: PARTIALS_OF_SOURCE,
            bytes: 64 * MAX_PDU_BYTES,
            time: Duration::from_secs(2),
            pdu_bytes: MAX_PDU_BYTES,
            finished: 1024,
        }
    }
}

impl Limits {
    /// Replaces each limit that is out of range by the nearest value in range.
    pub(crate) fn in_range(self) -> Limits {
        Limits {
            partials: self.partials.clamp(1, MAX_PARTIALS),
            partials_of_source: self.partials_of_source.max(1),
            bytes: self.bytes.max(MAX_PDU_BYTES),
            pdu_bytes: self.pdu_bytes.min(MAX_PDU_BYTES),
            finished: self.finished.min(MAX_FINISHED),
            ..self
        }
    }
}
