//! Loss detection that is faster than smoltcp's: NewReno (RFC 6582) and a retransmission timeout
//! that follows the path (RFC 6298).
//!
//! smoltcp retransmits one segment after three duplicate acknowledgements in a row, and else waits
//! for its timeout, at least a second. Two lost segments in one window cost that second. So does a
//! loss while the peer sends data, or reads and announces a larger window: smoltcp then sees no
//! duplicates in a row. On a path of 100 microseconds that second dominates the transfer.
//!
//! So this module detects losses, and signals them to smoltcp by three duplicate acknowledgements.
//! smoltcp's own timeout stays as the last resort.

use std::time::Duration;

use super::segment::{self, Segment, before};
use crate::Instant;

/// The shortest timeout; Linux has the same (`TCP_RTO_MIN` in `include/net/tcp.h`). RFC 6298, 2.4,
/// asks for a second, for coarse clocks. The timeout must be longer than peers delay an
/// acknowledgement.
const SHORTEST: Duration = Duration::from_millis(200);
/// The longest timeout before doubling. From a second on, smoltcp's own timeout comes first.
const LONGEST: Duration = Duration::from_secs(60);
/// The maximum number of doublings of a timeout.
const DOUBLINGS: u32 = 8;
/// Duplicate acknowledgements that indicate a lost segment (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;

/// A connection's state of loss detection.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Duplicate acknowledgements since the last one of new data.
    duplicates: u8,
    /// The window of the last segment, unshifted.
    window: u16,
    /// The end of the peer's data, if the stack accepts it.
    heard_to: Option<u32>,
    /// The end of the data sent when a loss was detected. Until it is acknowledged, each partial
    /// acknowledgement indicates another lost segment.
    recover: Option<u32>,
    /// A segment sent for the first time, and its time: its acknowledgement measures the round
    /// trip.
    timed: Option<(u32, Instant)>,
    /// The smoothed round trip time, and its variation.
    round_trip: Option<(Duration, Duration)>,
    /// The time when unacknowledged data counts as lost.
    probe_at: Option<Instant>,
    doublings: u32,
    /// `true` if smoltcp got a loss signal, and has not retransmitted since.
    told: bool,
}

impl Recovery {
    /// Records the end of the peer's data. The stack accepts only an `expected` end: at most the
    /// largest window beyond our last acknowledgement.
    pub(super) fn note_peer(&mut self, seg: &Segment, expected: (u32, usize)) {
        let end = seg.sequence.wrapping_add(seg.len());
        let believed = end.wrapping_sub(expected.0) as usize <= expected.1;
        let further = |to| before(to, end) || before(to, expected.0);
        if believed && self.heard_to.is_none_or(further) {
            self.heard_to = Some(end);
        }
    }

    /// Examines a segment before the connection does. `acknowledged` and `sent_to` are the values
    /// before the segment; `selects`: `true` if it reports data received beyond its
    /// acknowledgement. Returns `true` if the first unacknowledged segment has to be retransmitted.
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
            // It acknowledges data never sent, or is old.
            return false;
        }
        if before(acknowledged, at) {
            return self.advanced(now, at, sent_to);
        }
        // A segment with a selective acknowledgement is a duplicate in any case (RFC 6675, 2);
        // others may be window updates. A segment with data is no duplicate, and does not interrupt
        // a row of duplicates.
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

    /// Handles an acknowledgement of new data.
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

    /// Updates the round trip time by RFC 6298, 2.2 and 2.3.
    fn measure(&mut self, sample: Duration) {
        self.round_trip = Some(match self.round_trip {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => {
                let off = smoothed.abs_diff(sample);
                ((smoothed * 7 + sample) / 8, (variation * 3 + off) / 4)
            }
        });
    }

    /// Sets the timeout. Before the first measurement, only smoltcp's own timeout applies.
    fn arm(&mut self, now: Instant) {
        self.probe_at = self.round_trip.map(|(smoothed, variation)| {
            let timeout = (smoothed + variation * 4).clamp(SHORTEST, LONGEST);
            now + timeout * (1 << self.doublings.min(DOUBLINGS))
        });
    }

    /// Records sent data, up to `end`; `again`: `true` for a retransmission.
    pub(super) fn sent(&mut self, now: Instant, end: u32, again: bool) {
        if again {
            // The next acknowledgement may be for either copy (Karn's algorithm; RFC 6298, 3).
            self.timed = None;
            if !std::mem::take(&mut self.told) {
                // smoltcp's own timeout: smoltcp retransmits everything, and needs no signal.
                self.recover = None;
            }
        } else if self.timed.is_none() {
            self.timed = Some((end, now));
        }
        if self.probe_at.is_none() {
            self.arm(now);
        }
    }

    /// Returns when to call [`Recovery::expired`].
    pub(super) fn probe_at(&self) -> Option<Instant> {
        self.probe_at
    }

    /// Returns `true` if the timeout has passed and the first unacknowledged segment has to be
    /// retransmitted.
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
        // smoltcp itself probes a closed window.
        self.window != 0
    }

    /// Returns the segments that signal a loss to smoltcp: sequence number and windows. The first
    /// window differs, so that smoltcp restarts its count; the second one is the true window again.
    /// `acknowledged` is our last acknowledgement.
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
        assert!(heard(1000, 0), "the third duplicate");
        assert!(!heard(1000, 0), "the fourth changes nothing");
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
    fn smoltcp_gets_peer_positions_for_any_initial_sequence() {
        for start in [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0_u32] {
            let mut recovery = Recovery::default();
            assert_eq!(recovery.tell(start).0, start);
            let seg = Segment { sequence: start.wrapping_add(100), ..acknowledgement(0, 9, 20) };
            recovery.note_peer(&seg, (start, 1000));
            assert_eq!(recovery.tell(start).0, start.wrapping_add(120));
            // A segment outside every window does not count.
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
        assert_eq!(recovery.probe_at(), None, "no measurement yet");
        assert!(!recovery.heard(at(1), &acknowledgement(2000, 9, 0), false, 1000, Some(2000)));
        recovery.sent(at(10), SENT, false);
        assert_eq!(recovery.probe_at(), Some(at(210)));
        assert!(!recovery.expired(at(209), 2000, Some(SENT)));
        assert!(recovery.expired(at(210), 2000, Some(SENT)));
        assert_eq!(recovery.probe_at(), Some(at(610)));
        assert!(recovery.expired(at(610), 2000, Some(SENT)));
        assert_eq!(recovery.probe_at(), Some(at(1410)));
        // An acknowledgement ends the timeout. A retransmission gives no measurement.
        recovery.tell(0);
        recovery.sent(at(611), 3000, true);
        assert!(!recovery.heard(at(5000), &acknowledgement(SENT, 9, 0), false, 2000, Some(SENT)));
        assert_eq!(recovery.probe_at(), None);
        recovery.sent(at(6000), SENT + 1, false);
        assert_eq!(recovery.probe_at(), Some(at(6200)));
        // A slow path gets a longer timeout.
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
