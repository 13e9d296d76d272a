//! What packets cost the engine beyond their own bytes, and how much of it one turn does.
//!
//! A packet is one entry of a queue, and may be much work: a large packet is cut into segments, each of
//! which is copied by itself, and a packet for a group is copied to each of its members. So budgets that
//! count packets alone bound nothing. The engine counts the copies that it makes and their bytes; a packet
//! that needs more than one copy is charged for the others, to its queue set's share, to the turn's
//! packets and to the turn's bytes. The ordinary packet, which is copied once, is charged for its bytes,
//! as ever, and costs no arithmetic beside that.

/// Bytes that the engine moves in one turn in each direction, by [`Work::cost`]; the packet that uses up
/// the last of them goes whole. About twice what 512 packets of 1 KiB are, so that ordinary packets meet
/// the limits in packets first, and a millisecond's copying at 1 GB/s.
pub(crate) const TURN_BYTES: u64 = 1 << 20;

/// What a copy costs beside its bytes, as a number of bytes: headers, descriptors and counters of one
/// copy take about as long as a kilobyte takes to be moved.
pub(crate) const COPY_BYTES: u64 = 1024;

/// Copies made, or segments made for a device that does not cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) copies: u64,
    pub(crate) bytes: u64,
}

impl Work {
    /// One copy of so many bytes.
    #[inline(always)]
    pub(crate) fn copy(bytes: usize) -> Work {
        Work { copies: 1, bytes: bytes as u64 }
    }

    /// What is more than one copy of a packet of `len` bytes: that is what each packet is charged by
    /// itself.
    pub(crate) fn beyond_one(self, len: usize) -> Work {
        Work { copies: self.copies.saturating_sub(1), bytes: self.bytes.saturating_sub(len as u64) }
    }

    /// As a number of bytes.
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

/// What packets of a group that are sent together cost beyond themselves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// What is charged to their queue set.
    pub(crate) unit: Work,
    /// What captures and promiscuous endpoints make: the turn's work, and nobody's share.
    pub(crate) taps: Work,
    /// Bytes of the first `upto` packets of the group.
    bytes: u64,
    upto: usize,
}

/// How much a group may cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    /// Packets and copies beyond the first of each.
    pub(crate) packets: usize,
    /// Bytes of the queue set's turn.
    pub(crate) bytes: i64,
    /// Bytes of the engine's turn.
    pub(crate) turn_bytes: i64,
}

impl Spent {
    /// Whether the first `sent` packets of a group, whose lengths are given, have used up a share by what
    /// they cost beyond themselves. Ordinary packets never do: how many are taken is bounded before.
    pub(crate) fn has_used(
        &mut self,
        share: &Share,
        lens: impl ExactSizeIterator<Item = u32>,
    ) -> bool {
        let sent = lens.len();
        self.bytes += lens.skip(self.upto).map(u64::from).sum::<u64>();
        self.upto = sent;
        if self.unit == Work::default() && self.taps == Work::default() {
            return false;
        }
        let bytes = (self.bytes + self.unit.cost()) as i64;
        bytes >= share.bytes
            || bytes + self.taps.cost() as i64 >= share.turn_bytes
            || sent + (self.unit.copies + self.taps.copies) as usize >= share.packets
    }
}

#[cfg(test)]
mod tests;
