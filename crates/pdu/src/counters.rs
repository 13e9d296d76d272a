//! Counters. Every reason for a drop has one.

/// The outcome of received fragments and of incomplete PDUs, of all channels without a queue, or of
/// one channel with a queue.
///
/// Each fragment counts in one of `in_place`, `copied` and the reasons for a dropped fragment. Each
/// PDU with a stored part counts in `reassembled` or in one reason for giving up, unless it is
/// still incomplete. [`ReceiveCounters::adds_up`] checks that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounters {
    /// Frames examined.
    pub fragments: u64,
    /// Fragments that held their whole PDU; the application read it in place.
    pub in_place: u64,
    /// Fragments copied to their PDU's reassembly buffer: one copy each.
    pub copied: u64,
    /// Bytes of those copies.
    pub copied_bytes: u64,
    /// Fragments dropped: not one of this format, or damaged in their headers.
    pub malformed: u64,
    /// Fragments dropped: their PDU is longer than [`crate::Limits::pdu_bytes`].
    pub too_long: u64,
    /// Fragments dropped: duplicates, with the same bytes.
    pub duplicates: u64,
    /// Fragments dropped: their PDU was already delivered or given up.
    pub late: u64,
    /// Fragments dropped: each held its whole PDU, and the CRC is wrong.
    pub damaged_in_place: u64,
    /// Fragments dropped, each with the stored part of its PDU: overlaps earlier fragments, or has
    /// other bytes, another length or another CRC.
    pub conflicts: u64,
    /// Fragments dropped, each with the stored part of its PDU: too many holes.
    pub holes: u64,
    /// Fragments dropped: the queue of their channel is full of complete PDUs. Further fragments of
    /// such a PDU count as `late`.
    pub no_room: u64,
    /// PDUs with a stored part.
    pub started: u64,
    /// PDUs reassembled and delivered.
    pub reassembled: u64,
    /// PDUs given up: all parts arrived, and the CRC is wrong.
    pub damaged: u64,
    /// PDUs given up: their time expired.
    pub expired: u64,
    /// PDUs evicted for a newer one: too many of that source.
    pub gave_way_of_source: u64,
    /// PDUs evicted for a newer one: too many altogether.
    pub gave_way: u64,
    /// PDUs evicted for a newer one: too many bytes.
    pub gave_way_for_bytes: u64,
    /// Packets dropped that belong to another endpoint of the same queue pair.
    pub other_endpoints: u64,
}

impl ReceiveCounters {
    /// Returns the number of delivered PDUs.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut reassembler = Reassembler::new(Limits::default());
    /// // One PDU in one fragment, and one in two.
    /// for frame in [frame(1, 0, b"hello"), frame(2, 0, b"hel"), frame(2, 3, b"lo")] {
    ///     reassembler.accept(now, std::iter::once(&frame[..])).unwrap();
    /// }
    /// assert_eq!(reassembler.counters().delivered(), 2);
    /// ```
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.in_place + self.reassembled
    }

    /// Returns `true` if every fragment, and every started PDU but for the `waiting` incomplete
    /// ones, counts once.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use towpath_pdu::{Accepted, ChannelQueue, Channels, Fragment, Limits, OVERHEAD_BYTES, Reassembler};
    /// # /// A frame that holds a part of the PDU "hello" of channel 7.
    /// # fn frame(id: u32, offset: usize, part: &[u8]) -> Vec<u8> {
    /// #     let fragment = Fragment {
    /// #         destination: [2, 0, 0, 0, 0, 1].into(),
    /// #         source: [2, 0, 0, 0, 0, 2].into(),
    /// #         channel: 7,
    /// #         id,
    /// #         total: 5,
    /// #         offset: offset as u32,
    /// #         len: part.len() as u16,
    /// #         crc: 0x9a71_bb4c,
    /// #     };
    /// #     let mut headers = [0; OVERHEAD_BYTES];
    /// #     fragment.write(&mut headers);
    /// #     [&headers[..], part].concat()
    /// # }
    /// # let now = Instant::now();
    /// let mut reassembler = Reassembler::new(Limits::default());
    /// reassembler.accept(now, std::iter::once(&frame(1, 0, b"hel")[..])).unwrap();
    /// assert!(reassembler.counters().adds_up(reassembler.waiting()));
    /// ```
    #[must_use]
    pub fn adds_up(&self, waiting: usize) -> bool {
        let dropped = self.malformed
            + self.too_long
            + self.duplicates
            + self.late
            + self.damaged_in_place
            + self.conflicts
            + self.holes
            + self.no_room;
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

/// Counters of sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounters {
    /// PDUs accepted for sending.
    pub pdus: u64,
    /// Their fragments.
    pub fragments: u64,
    /// Bytes that [`std::io::Write`] of a [`crate::Message`] copied into buffers for the
    /// application. Bytes that the application writes in place do not count.
    pub copied_bytes: u64,
    /// PDUs refused as a whole, because the buffers had no room.
    pub full: u64,
}
