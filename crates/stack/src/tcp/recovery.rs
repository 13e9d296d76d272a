//! What is lost, found out sooner than smoltcp does: NewReno (RFC 6582) and a retransmission
//! timeout that follows the path (RFC 6298).
//!
//! smoltcp sends one segment again after three duplicate acknowledgements in a row, and else waits
//! for its timeout, of a second at least. Two segments lost in one window cost it that second, and
//! so does one that is lost while the peer sends data of its own, or reads and tells of a larger
//! window: then no duplicates follow each other that smoltcp takes for such. Over a path of 100
//! microseconds that is most of the time.
//!
//! So the decision is made here, and smoltcp is told in the words that it understands: three
//! duplicate acknowledgements. Its own timeout stays, for when all else fails.

use std::time::Duration;

use super::segment::{self, Segment, before};
use crate::Instant;

/// The shortest timeout; Linux has the same (`TCP_RTO_MIN` in `include/net/tcp.h`). RFC 6298, 2.4,
/// asks for a second, for clocks that were coarse. It must be longer than peers keep an
/// acknowledgement back.
const SHORTEST: Duration = Duration::from_millis(200);
/// The longest timeout before doubling; smoltcp's own comes first from a second on.
const LONGEST: Duration = Duration::from_secs(60);
/// How often a timeout is doubled at most.
const DOUBLINGS: u32 = 8;
/// Duplicate acknowledgements that say that a segment is lost (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;

/// What a connection knows of its losses.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Duplicate acknowledgements since the last that was none.
    duplicates: u8,
    /// The window of the last segment, unshifted.
    window: u16,
    /// The end of what the peer sent, as far as it is believed.
    heard_to: Option<u32>,
    /// What had been sent when a loss was found. Until it is acknowledged, wherever an
    /// acknowledgement stops another segment is lost.
    recover: Option<u32>,
    /// What was sent for the first time, and when: its acknowledgement tells the path's time.
    timed: Option<(u32, Instant)>,
    /// The path's time, smoothed, and its variation.
    round_trip: Option<(Duration, Duration)>,
    /// When what is not acknowledged counts as lost.
    probe_at: Option<Instant>,
    doublings: u32,
    /// smoltcp was told of a loss, and has not sent since.
    told: bool,
}

impl Recovery {
    /// Notes how far the peer has come with its own data. What is not `expected`, from the last
    /// acknowledgement of ours as far as any window goes, is not believed.
    pub(super) fn note_peer(&mut self, seg: &Segment, expected: (u32, usize)) {
        let end = seg.sequence.wrapping_add(seg.len());
        let believed = end.wrapping_sub(expected.0) as usize <= expected.1;
        let further = |to| before(to, end) || before(to, expected.0);
        if believed && self.heard_to.is_none_or(further) {
            self.heard_to = Some(end);
        }
    }

    /// Looks at a segment before the connection does: `acknowledged` and `sent_to` are where it
    /// stood before; `selects`: it says that something came beyond what it acknowledges. Whether
    /// the first segment that is not acknowledged is to be sent again.
    pub(super) fn heard(
        &mut self,
        now: Instant,
        seg: &Segment,
        selects: bool,
        acknowledged: u32,
        sent_to: Option<u32>,
    ) -> bool {
        let Some(sent_to) = sent_to else { return false };
        if !seg.has(segment::ACK) || seg.has(segment::SYN | segment::RST) {
            return false;
        }
        let at = seg.acknowledgement;
        let same_window = std::mem::replace(&mut self.window, seg.window) == seg.window;
        if before(sent_to, at) || before(at, acknowledged) {
            // Of what was never sent, or an old one.
            return false;
        }
        if before(acknowledged, at) {
            return self.advanced(now, at, sent_to);
        }
        // A selective acknowledgement is one whatever else the segment says (RFC 6675, 2); others
        // may be news of the window. A segment with data stands between duplicates and is none.
        let duplicate = selects || (seg.len() == 0 && same_window);
        let duplicate = duplicate && at != sent_to && seg.window != 0;
        if !duplicate {
            return false;
        }
        self.duplicates = self.duplicates.saturating_add(1);
        let lost = self.duplicates == DUPLICATES && self.recover.is_none();
        if lost {
            self.recover = Some(sent_to);
        }
        lost
    }

    /// Something new was acknowledged.
    fn advanced(&mut self, now: Instant, at: u32, sent_to: u32) -> bool {
        self.duplicates = 0;
        self.doublings = 0;
        if let Some((end, since)) = self.timed
            && !before(at, end)
        {
            self.measure(now.since(since));
            self.timed = None;
        }
        self.probe_at = None;
        if at != sent_to {
            self.arm(now);
        }
        match self.recover {
            // RFC 6582, 3.2, step 3: a partial acknowledgement.
            Some(recover) if before(at, recover) => true,
            _ => {
                self.recover = None;
                false
            }
        }
    }

    /// RFC 6298, 2.2 and 2.3.
    fn measure(&mut self, sample: Duration) {
        self.round_trip = Some(match self.round_trip {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => {
                let off = smoothed.abs_diff(sample);
                ((smoothed * 7 + sample) / 8, (variation * 3 + off) / 4)
            }
        });
    }

    /// Sets the timeout. Before the path's time is known it is left to smoltcp.
    fn arm(&mut self, now: Instant) {
        self.probe_at = self.round_trip.map(|(smoothed, variation)| {
            let timeout = (smoothed + variation * 4).clamp(SHORTEST, LONGEST);
            now + timeout * (1 << self.doublings.min(DOUBLINGS))
        });
    }

    /// Notes what was sent, up to `end`; `again`: it had been sent before.
    pub(super) fn sent(&mut self, now: Instant, end: u32, again: bool) {
        if again {
            // Whose acknowledgement comes now cannot be told (Karn's algorithm; RFC 6298, 3).
            self.timed = None;
            if !std::mem::take(&mut self.told) {
                // smoltcp's own timeout: it sends everything again, and nothing need be added.
                self.recover = None;
            }
        } else if self.timed.is_none() {
            self.timed = Some((end, now));
        }
        if self.probe_at.is_none() {
            self.arm(now);
        }
    }

    /// When [`Recovery::expired`] is to be asked.
    pub(super) fn probe_at(&self) -> Option<Instant> {
        self.probe_at
    }

    /// Whether the timeout has passed, so that the first segment that is not acknowledged is to be
    /// sent again.
    pub(super) fn expired(
        &mut self,
        now: Instant,
        acknowledged: u32,
        sent_to: Option<u32>,
    ) -> bool {
        if self.probe_at.is_none_or(|at| now < at) {
            return false;
        }
        self.probe_at = None;
        let Some(sent_to) = sent_to.filter(|&to| before(acknowledged, to)) else { return false };
        self.doublings += 1;
        self.arm(now);
        self.recover = Some(sent_to);
        // A window that is closed is smoltcp's to probe.
        self.window != 0
    }

    /// The segments that tell smoltcp of a loss: sequence number and windows. The first one's
    /// window differs, so that whatever smoltcp has counted it counts anew; the second's is the
    /// true one again. `acknowledged`: the last acknowledgement of ours.
    pub(super) fn tell(&mut self, acknowledged: u32) -> (u32, [u16; 5]) {
        self.told = true;
        let window = self.window;
        let heard_to = self.heard_to.filter(|&to| before(acknowledged, to));
        (heard_to.unwrap_or(acknowledged), [window ^ 1, window, window, window, window])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: u32 = 10_000;

    fn acknowledgement(at: u32, window: u16, payload_bytes: usize) -> Segment {
        Segment {
            src_port: 1,
            dst_port: 2,
            sequence: 500,
            acknowledgement: at,
            flags: segment::ACK,
            window,
            header_bytes: 20,
            payload_bytes,
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_micros(ms * 1000)
    }

    #[test]
    fn data_between_duplicates_does_not_hide_a_loss() {
        let mut recovery = Recovery::default();
        let mut heard = |ack, len| {
            recovery.heard(at(1), &acknowledgement(ack, 9, len), false, 1000, Some(SENT))
        };
        heard(1000, 0);
        assert!(!heard(1000, 0) && !heard(1000, 700) && !heard(1000, 0));
        assert!(heard(1000, 0), "the third");
        assert!(!heard(1000, 0), "the fourth says nothing new");
    }

    #[test]
    fn selective_acknowledgements_are_duplicates_with_any_window() {
        let mut recovery = Recovery::default();
        for (window, expected) in [(5, false), (6, false), (7, true)] {
            let seg = acknowledgement(1000, window, 300);
            assert_eq!(recovery.heard(at(1), &seg, true, 1000, Some(SENT)), expected);
        }
    }

    #[test]
    fn smoltcp_is_told_where_the_peer_is_wherever_it_began() {
        for start in [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0_u32] {
            let mut recovery = Recovery::default();
            assert_eq!(recovery.tell(start).0, start);
            let seg = Segment { sequence: start.wrapping_add(100), ..acknowledgement(0, 9, 20) };
            recovery.note_peer(&seg, (start, 1000));
            assert_eq!(recovery.tell(start).0, start.wrapping_add(120));
            // What lies outside every window is no word of the peer's.
            let seg = Segment { sequence: start.wrapping_add(5000), ..acknowledgement(0, 9, 20) };
            recovery.note_peer(&seg, (start, 1000));
            assert_eq!(recovery.tell(start).0, start.wrapping_add(120));
        }
    }

    #[test]
    fn window_updates_and_answers_to_probes_are_no_duplicates() {
        for window in [0, 1] {
            let mut recovery = Recovery::default();
            for n in 0..10 {
                let seg = acknowledgement(1000, window * (n + 1), 0);
                assert!(!recovery.heard(at(1), &seg, false, 1000, Some(SENT)), "{window} {n}");
            }
        }
        let mut recovery = Recovery::default();
        for _ in 0..10 {
            assert!(!recovery.heard(at(1), &acknowledgement(SENT, 9, 0), false, SENT, Some(SENT)));
        }
    }

    #[test]
    fn a_partial_acknowledgement_is_the_next_loss() {
        let mut recovery = Recovery::default();
        let mut heard =
            |ack, una| recovery.heard(at(1), &acknowledgement(ack, 9, 0), false, una, Some(SENT));
        for expected in [false, false, false, true] {
            assert_eq!(heard(1000, 1000), expected);
        }
        assert!(heard(3000, 1000) && heard(4000, 3000));
        assert!(!heard(SENT, 4000), "all of it");
        assert!(!heard(SENT, SENT));
    }

    #[test]
    fn the_timeout_follows_the_path_and_doubles() {
        let mut recovery = Recovery::default();
        recovery.sent(at(0), 2000, false);
        assert_eq!(recovery.probe_at(), None, "nothing is known");
        assert!(!recovery.heard(at(1), &acknowledgement(2000, 9, 0), false, 1000, Some(2000)));
        recovery.sent(at(10), SENT, false);
        assert_eq!(recovery.probe_at(), Some(at(210)));
        assert!(!recovery.expired(at(209), 2000, Some(SENT)));
        assert!(recovery.expired(at(210), 2000, Some(SENT)));
        assert_eq!(recovery.probe_at(), Some(at(610)));
        assert!(recovery.expired(at(610), 2000, Some(SENT)));
        assert_eq!(recovery.probe_at(), Some(at(1410)));
        // An acknowledgement ends it. What was sent again is no measurement.
        recovery.tell(0);
        recovery.sent(at(611), 3000, true);
        assert!(!recovery.heard(at(5000), &acknowledgement(SENT, 9, 0), false, 2000, Some(SENT)));
        assert_eq!(recovery.probe_at(), None);
        recovery.sent(at(6000), SENT + 1, false);
        assert_eq!(recovery.probe_at(), Some(at(6200)));
        // A path that takes long is given its time.
        let mut slow = Recovery::default();
        slow.sent(at(0), 2000, false);
        slow.heard(at(400), &acknowledgement(2000, 9, 0), false, 1000, Some(2000));
        slow.sent(at(400), 3000, false);
        assert_eq!(slow.probe_at(), Some(at(400 + 400 + 4 * 200)));
    }

    #[test]
    fn after_smoltcps_own_timeout_nothing_is_added() {
        let mut recovery = Recovery::default();
        for _ in 0..4 {
            recovery.heard(at(1), &acknowledgement(1000, 9, 0), false, 1000, Some(SENT));
        }
        recovery.tell(0);
        recovery.sent(at(2), 2000, true);
        recovery.sent(at(1002), 2000, true);
        assert!(!recovery.heard(at(1003), &acknowledgement(2000, 9, 0), false, 1000, Some(SENT)));
    }
}
