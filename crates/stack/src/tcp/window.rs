//! The end of our own receive window, as the peer knows it.
//!
//! A segment announces a window in units of a power of two (RFC 7323, 2.2), rounded down. Two
//! windows for the same free room may differ, and the end may move back by less than a unit. A peer
//! that has filled the first window is then beyond the end of the second, as RFC 9293, 3.8.6
//! allows. All its further segments, even acknowledgements and window updates, are outside the
//! window for smoltcp, which drops them whole. With both sides full, neither ever accepts the
//! other's segments again. The same holds for acknowledgements that a peer sends together with data
//! while the window is closed (RFC 9293, 3.10.7.4: a receiver processes an acknowledgement also
//! then).
//!
//! So the stack handles a segment between smoltcp's end of the window and the furthest end ever
//! announced. It processes that segment's acknowledgement as if it had come alone and in sequence.

use super::port::Sent;
use super::segment::{self, Segment, before};

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// The first sequence number that the application has not read; known from the peer's SYN on.
    unread: Option<u32>,
    /// The shift of our windows.
    shift: u8,
    /// The end of the last announced window: smoltcp's limit.
    end: u32,
    /// The furthest end ever announced; known from our first acknowledgement on.
    furthest: Option<u32>,
}

impl Window {
    /// Records the peer's SYN; `scales`: `true` if it has the window scale option.
    pub(super) fn heard_syn(&mut self, sequence: u32, scales: bool) {
        self.unread = Some(sequence.wrapping_add(1));
        if !scales {
            self.shift = 0;
        }
    }

    /// Records that the application read, or the stack discarded, `len` bytes.
    pub(super) fn read(&mut self, len: usize) {
        self.unread = self.unread.map(|unread| unread.wrapping_add(len as u32));
    }

    /// Records a sent window.
    pub(super) fn note_sent(&mut self, sent: &Sent) {
        if sent.flags & segment::SYN != 0 {
            self.shift = sent.window_shift;
        } else if sent.flags & segment::ACK != 0 {
            self.end = sent.acknowledgement.wrapping_add(u32::from(sent.window) << self.shift);
            let further = |furthest| if before(furthest, self.end) { self.end } else { furthest };
            self.furthest = Some(self.furthest.map_or(self.end, further));
        }
    }

    /// Returns the sequence number at which smoltcp accepts a segment's acknowledgement alone, if
    /// smoltcp would drop the segment and the stack has to process it. `queued`: bytes received and
    /// not read.
    pub(super) fn place_of_acknowledgement(&self, seg: &Segment, queued: usize) -> Option<u32> {
        let (start, furthest) = (self.unread?.wrapping_add(queued as u32), self.furthest?);
        let control = segment::SYN | segment::RST | segment::FIN;
        let heard = seg.payload_bytes == 0 && seg.sequence == start;
        if !seg.has(segment::ACK) || seg.flags & control != 0 || heard {
            return None;
        }
        let between = !before(seg.sequence, start)
            && !before(seg.sequence, self.end)
            && !before(furthest, seg.sequence);
        between.then_some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(acknowledgement: u32, window: u16) -> Sent {
        let flags = segment::ACK;
        Sent { sequence: 1, len: 0, acknowledgement, flags, window, window_shift: 0 }
    }

    fn segment(sequence: u32, payload_bytes: usize) -> Segment {
        Segment {
            src_port: 1,
            dst_port: 2,
            sequence,
            acknowledgement: 50,
            flags: segment::ACK,
            window: 9,
            header_bytes: 20,
            payload_bytes,
        }
    }

    /// Uses the numbers of a connection that stalled for ever.
    #[test]
    fn acks_behind_a_retracted_window_end_are_adjusted() {
        let mut window = Window::default();
        window.heard_syn(u32::MAX, true);
        window.note_sent(&Sent { flags: segment::SYN, window_shift: 4, ..sent(0, 65_535) });
        window.note_sent(&sent(1_245_320, 8562));
        window.note_sent(&sent(1_307_900, 4650));
        window.read(1_000_000);
        // The end is now 1 382 300; it was 1 382 312.
        let queued = 382_300;
        assert_eq!(window.place_of_acknowledgement(&segment(1_382_299, 1), queued), None);
        let start = Some(1_382_300);
        assert_eq!(window.place_of_acknowledgement(&segment(1_382_312, 0), queued), start);
        assert_eq!(window.place_of_acknowledgement(&segment(1_382_300, 12), queued), start);
        assert_eq!(window.place_of_acknowledgement(&segment(1_382_300, 0), queued), None);
        assert_eq!(window.place_of_acknowledgement(&segment(1_382_313, 0), queued), None);
        let reset = Segment { flags: segment::RST | segment::ACK, ..segment(1_382_312, 0) };
        assert_eq!(window.place_of_acknowledgement(&reset, queued), None);
    }
}
