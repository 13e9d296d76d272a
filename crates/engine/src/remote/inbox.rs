//! The frames of a poll iteration that are for connections with other hosts, in private memory: no
//! device and no application changes a frame between its check and its use.

/// The longest frame: headers, and 4096 bytes of payload.
pub(super) const FRAME_BYTES: usize = 4352;

/// The frames.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Room for the frames, one behind the other; empty if the inbox takes none.
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    /// The most frames.
    most: usize,
    /// Frames without room, or not in the device's memory.
    dropped: u64,
}

impl Inbox {
    /// Returns an inbox for `most` frames of the longest; if that is 0, it takes none.
    pub(crate) fn new(most: usize) -> Inbox {
        Inbox {
            bytes: vec![0; most * FRAME_BYTES],
            ends: Vec::with_capacity(most),
            most,
            dropped: 0,
        }
    }

    /// `true` if it takes frames.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// `true` if it has no frame.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Takes a frame of `len` bytes, which `copy` copies. Drops and counts it if there is no room, if it is
    /// longer than any of a connection, or if `copy` fails. An inbox that is off does nothing.
    pub(crate) fn push(&mut self, len: usize, copy: impl FnOnce(&mut [u8]) -> bool) {
        if !self.is_on() {
            return;
        }
        let begin = self.ends.last().copied().unwrap_or(0);
        let is_good = len <= FRAME_BYTES && self.ends.len() < self.most;
        let room = self.bytes.get_mut(begin..begin + len).filter(|_| is_good);
        if room.is_some_and(copy) {
            self.ends.push(begin + len);
        } else {
            self.dropped += 1;
        }
    }

    /// Returns the frames.
    pub(super) fn frames(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(from, to)| &self.bytes[from..*to])
    }

    /// Returns how many frames were dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Forgets the frames.
    pub(super) fn clear(&mut self) {
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_so_many_of_the_longest_frames() {
        let mut inbox = Inbox::new(64);
        // 4096 bytes of payload, within a VLAN, by IPv6.
        (0..64).for_each(|_| inbox.push(4096 + 18 + 40 + 8 + 12 + 16 + 4 + 4, |_| true));
        assert_eq!((inbox.frames().count(), inbox.dropped), (64, 0));
    }

    #[test]
    fn frames_come_out_as_they_went_in_until_there_is_no_room() {
        let mut inbox = Inbox::new(4);
        let fill = |byte| {
            move |to: &mut [u8]| {
                to.fill(byte);
                true
            }
        };
        inbox.push(3, fill(1));
        inbox.push(9, |_| false);
        inbox.push(0, fill(7));
        inbox.push(2, fill(2));
        let frames: Vec<&[u8]> = inbox.frames().collect();
        assert_eq!(frames, [&[1, 1, 1][..], &[], &[2, 2]]);
        inbox.push(FRAME_BYTES + 1, fill(3));
        assert_eq!(inbox.dropped, 2, "and the one that was not copied");
        (0..4).for_each(|_| inbox.push(1, fill(4)));
        assert_eq!((inbox.frames().count(), inbox.dropped), (4, 5));
        inbox.clear();
        assert!(inbox.is_empty());
        let mut off = Inbox::new(0);
        off.push(1, fill(1));
        assert_eq!((off.is_empty(), off.dropped), (true, 0));
    }
}
