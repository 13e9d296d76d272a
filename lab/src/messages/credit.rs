//! Flow control by acknowledgements that also carry the free buffer space, as in Riddoch and Pope's
//! section 4.2: the arithmetic of both sides. Neither does input or output.
//!
//! Both sides count buffers since the beginning, so a lost or late acknowledgement does no harm:
//! the next one says more.

/// An acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    /// Buffers that the receiver has emptied since the beginning.
    pub(crate) emptied: u64,
    /// Buffers that are free beyond these.
    pub(crate) free: u64,
}

impl Acknowledgement {
    /// The length of an acknowledgement in a packet.
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        (u128::from(self.emptied) << 64 | u128::from(self.free)).to_be_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES]) -> Acknowledgement {
        let both = u128::from_be_bytes(bytes);
        Acknowledgement { emptied: (both >> 64) as u64, free: both as u64 }
    }
}

/// The receiver's side: its buffers.
#[derive(Debug)]
pub(crate) struct Granter {
    buffers: u64,
    emptied: u64,
    acknowledged: u64,
}

impl Granter {
    /// Creates a receiver with this many buffers, all free. It has already emptied `emptied`.
    pub(crate) fn new(buffers: u64, emptied: u64) -> Granter {
        Granter { buffers, emptied, acknowledged: emptied }
    }

    /// Returns the number of buffers that the receiver has emptied since the beginning.
    pub(crate) fn emptied(&self) -> u64 {
        self.emptied
    }

    /// Notes that the receiver has emptied buffers.
    pub(crate) fn empty(&mut self, buffers: u64) {
        self.emptied += buffers;
    }

    /// Returns the acknowledgement to send now, if half of the buffers were emptied since the last
    /// one. So a packet that takes at most half of the buffers never waits for ever.
    pub(crate) fn due(&mut self) -> Option<Acknowledgement> {
        if self.emptied - self.acknowledged < self.buffers.div_ceil(2) {
            return None;
        }
        self.acknowledged = self.emptied;
        Some(Acknowledgement { emptied: self.emptied, free: self.buffers })
    }
}

/// The sender's side: the buffers that it may fill.
#[derive(Debug)]
pub(crate) struct Credit {
    filled: u64,
    last: Acknowledgement,
}

impl Credit {
    /// Creates a sender whose receiver has this many free buffers, and has emptied `emptied`.
    pub(crate) fn new(buffers: u64, emptied: u64) -> Credit {
        Credit { filled: emptied, last: Acknowledgement { emptied, free: buffers } }
    }

    /// Returns the number of buffers that the sender may fill now.
    pub(crate) fn room(&self) -> u64 {
        (self.last.emptied + self.last.free).saturating_sub(self.filled)
    }

    /// Notes that the sender has filled buffers.
    pub(crate) fn fill(&mut self, buffers: u64) {
        self.filled += buffers;
    }

    /// Takes an acknowledgement. One that says less than an earlier one came late, and changes
    /// nothing.
    pub(crate) fn take(&mut self, acknowledgement: Acknowledgement) {
        if acknowledgement.emptied > self.last.emptied {
            self.last = acknowledgement;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_never_fills_more_than_the_receiver_has_free() {
        for (buffers, each) in [(2, 1), (3, 1), (34, 17), (35, 17), (512, 2)] {
            let (mut granter, mut credit) = (Granter::new(buffers, 9), Credit::new(buffers, 9));
            let (mut waiting, mut acknowledged) = (0, 0);
            for _ in 0..1000 {
                while credit.room() >= each {
                    credit.fill(each);
                    waiting += each;
                    assert!(waiting <= buffers, "{buffers} buffers, {each} for a packet");
                }
                assert!(
                    waiting > 0,
                    "{buffers} buffers, {each} for a packet: neither side may go on"
                );
                granter.empty(each);
                waiting -= each;
                if let Some(one) = granter.due() {
                    assert_eq!(Acknowledgement::from_bytes(one.to_bytes()), one);
                    credit.take(one);
                    acknowledged += 1;
                }
            }
            let most = 1000 * each / buffers.div_ceil(2);
            assert!((1..=most).contains(&acknowledged), "{acknowledged}");
        }
    }

    #[test]
    fn lost_and_late_acknowledgements_do_no_harm() {
        let mut credit = Credit::new(4, 0);
        credit.fill(4);
        assert_eq!(credit.room(), 0);
        // The first one is lost until later.
        credit.take(Acknowledgement { emptied: 4, free: 3 });
        assert_eq!(credit.room(), 3);
        credit.take(Acknowledgement { emptied: 2, free: 4 });
        assert_eq!(credit.room(), 3);
        credit.fill(3);
        assert_eq!(credit.room(), 0);
    }
}
