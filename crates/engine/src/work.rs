//! The cost of packets beyond their own bytes, and its limit per poll iteration.
//!
//! A packet is one entry of a queue, and may be much work. The engine segments a large packet and
//! copies each segment by itself, and it copies a packet for a group to each member. Budgets that
//! only count packets therefore bound nothing. The engine counts its copies and their bytes. It
//! charges a packet for each copy beyond the first: to its queue pair's share, to the iteration's
//! packets and to the iteration's bytes. An ordinary packet, with one copy, is charged only for its
//! bytes and costs no further arithmetic.

/// Bytes that the engine moves per poll iteration in each direction, by [`Work::cost`]; the packet
/// that uses up the last of them goes whole. This is about twice the size of 512 packets of 1 KiB,
/// so that ordinary packets meet the packet limits first. It is also a millisecond's copying at 1
/// GB/s.
pub(crate) const ITERATION_BYTES: u64 = 1 << 20;

/// The fixed cost of a copy, as a number of bytes. Headers, descriptors and counters of one copy
/// take about as long as moving a kilobyte.
pub(crate) const COPY_BYTES: u64 = 1024;

/// Copies, or segments made for a device that cannot segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) copies: u64,
    pub(crate) bytes: u64,
}

impl Work {
    /// Returns the work of one copy of `bytes` bytes.
    #[inline(always)]
    pub(crate) fn copy(bytes: usize) -> Work {
        Work { copies: 1, bytes: bytes as u64 }
    }

    /// Returns the work beyond one copy of a packet of `len` bytes, which every packet is charged
    /// for anyway.
    pub(crate) fn beyond_one(self, len: usize) -> Work {
        Work { copies: self.copies.saturating_sub(1), bytes: self.bytes.saturating_sub(len as u64) }
    }

    /// Returns the cost as a number of bytes.
    pub(crate) fn cost(self) -> u64 {
        self.bytes + self.copies * COPY_BYTES
    }
}

impl std::ops::AddAssign for Work {
    #[inline(always)]
    fn add_assign(&mut self, more: Work) {
        self.copies += more.copies;
        self.bytes += more.bytes;
    }
}

/// The cost of a batch's packets beyond their own bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// The work charged to the queue pair.
    pub(crate) unit: Work,
    /// The work for captures and promiscuous endpoints. It counts against the poll iteration, and
    /// against no unit's share.
    pub(crate) captures: Work,
    /// Bytes of the first `upto` packets of the batch.
    bytes: u64,
    upto: usize,
    /// `true` if a cost was added that the engine has not compared with the batch's share.
    is_unchecked: bool,
}

/// The limit of a batch's cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    /// Packets, and each packet's copies beyond the first.
    pub(crate) packets: usize,
    /// Bytes of the queue pair's turn.
    pub(crate) bytes: i64,
    /// Bytes of the poll iteration.
    pub(crate) iteration_bytes: i64,
}

impl Spent {
    /// Adds the cost of a packet beyond the one copy that every packet is charged for: that charged to
    /// the queue pair, and that for captures and promiscuous endpoints.
    pub(crate) fn add(&mut self, unit: Work, captures: Work) {
        if unit == Work::default() && captures == Work::default() {
            return;
        }
        self.unit += unit;
        self.captures += captures;
        self.is_unchecked = true;
    }

    /// Adds the cost of a request, or of a piece of it.
    pub(crate) fn add_request(&mut self, work: Work) {
        self.unit += work;
        self.is_unchecked = true;
    }

    /// Returns `true` if a cost was added since the last call.
    #[inline]
    pub(crate) fn take_unchecked(&mut self) -> bool {
        std::mem::take(&mut self.is_unchecked)
    }

    /// Returns `true` if the first `sent` packets of a batch, whose lengths are given, have used up
    /// a share by their extra cost. Ordinary packets never do: the number taken bounds them before.
    pub(crate) fn has_used(
        &mut self,
        share: &Share,
        lens: impl ExactSizeIterator<Item = u32>,
    ) -> bool {
        let sent = lens.len();
        self.bytes += lens.skip(self.upto).map(u64::from).sum::<u64>();
        self.upto = sent;
        if self.unit == Work::default() && self.captures == Work::default() {
            return false;
        }
        let bytes = (self.bytes + self.unit.cost()) as i64;
        bytes >= share.bytes
            || bytes + self.captures.cost() as i64 >= share.iteration_bytes
            || sent + (self.unit.copies + self.captures.copies) as usize >= share.packets
    }
}

#[cfg(test)]
mod tests;
