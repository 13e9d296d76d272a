//! What is counted. Nothing is dropped that is not.

/// What became of received fragments and of PDUs in parts.
///
/// Each fragment is in one of `in_place`, `copied` and the reasons for which one is dropped; each
/// PDU of which a part was kept in one of `reassembled`, the reasons for which one is given up, and
/// those that still wait. [`ReceiveCounters::adds_up`] says whether that is so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Frames looked at.
    pub fragments: u64,
    /// Fragments that were all of their PDU, and were given to be read in place.
    pub in_place: u64,
    /// Fragments copied to the place where their PDU is put together: one copy each.
    pub copied: u64,
    /// Bytes of those copies.
    pub copied_bytes: u64,
    /// Fragments dropped: not one of this format, or damaged in their headers.
    pub malformed: u64,
    /// Fragments dropped: their PDU is longer than [`crate::Limits::pdu_bytes`].
    pub too_long: u64,
    /// Fragments dropped: they came before, with the same bytes.
    pub duplicates: u64,
    /// Fragments dropped: their PDU is done with, delivered or given up.
    pub late: u64,
    /// Fragments dropped: all of their PDU, and its CRC is wrong.
    pub damaged_in_place: u64,
    /// Fragments dropped, each with what had come of its PDU: it overlaps what came before, or
    /// says other bytes, another length or another CRC.
    pub conflicts: u64,
    /// Fragments dropped, each with what had come of its PDU: too many holes.
    pub holes: u64,
    /// PDUs of which a part was kept.
    pub started: u64,
    /// PDUs put together and delivered.
    pub reassembled: u64,
    /// PDUs given up: all parts came, and the CRC is wrong.
    pub damaged: u64,
    /// PDUs given up: the time was over.
    pub expired: u64,
    /// PDUs given up for a newer one: too many of that source.
    pub gave_way_of_source: u64,
    /// PDUs given up for a newer one: too many altogether.
    pub gave_way: u64,
    /// PDUs given up for a newer one: too many bytes.
    pub gave_way_for_bytes: u64,
    /// Packets dropped that were another endpoint's of the same queue set.
    pub other_endpoints: u64,
}

impl ReceiveCounters {
    /// PDUs delivered.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.in_place + self.reassembled
    }

    /// Whether every fragment, and every PDU in parts but for the `waiting` ones, is counted once.
    #[must_use]
    pub fn adds_up(&self, waiting: usize) -> bool {
        let dropped = self.malformed
            + self.too_long
            + self.duplicates
            + self.late
            + self.damaged_in_place
            + self.conflicts
            + self.holes;
        let given_up = self.damaged
            + self.conflicts
            + self.holes
            + self.expired
            + self.gave_way_of_source
            + self.gave_way
            + self.gave_way_for_bytes;
        self.fragments == self.in_place + self.copied + dropped
            && self.started == self.reassembled + given_up + waiting as u64
    }
}

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounters {
    /// PDUs taken to be sent.
    pub pdus: u64,
    /// Their fragments.
    pub fragments: u64,
    /// Bytes that were copied into frames, by [`std::io::Write`] of a [`crate::Message`]: the
    /// application's own filling. What it writes in place is no copy.
    pub copied_bytes: u64,
    /// PDUs refused for want of room, whole.
    pub full: u64,
}
