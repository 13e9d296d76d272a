//! The record of what was sent, and the tail loss probe that follows it (RFC 8985).

use std::time::Duration;

use super::options::Block;
use super::recovery::{FirstRetransmission, Forced, Phase};
use super::sending::Sending;
use super::sequence::Seq;
use crate::Instant;

/// The time that a peer may delay the acknowledgement of a single segment (RFC 8985, 7.2).
const PEER_DELAY: Duration = Duration::from_millis(200);
/// The least time before a tail loss probe.
const LEAST_PROBE: Duration = Duration::from_millis(10);

impl Sending {
    /// Records that data was sent for the first time.
    pub(super) fn note_sent(&mut self, now: Instant, start: Seq, end: Seq) {
        if !self.is_outstanding() {
            self.recovery.base = now;
        }
        self.recovery.has_sent = true;
        self.recovery.sent = self.recovery.sent.saturating_add(end.since(start));
        self.scoreboard.sent(start, end, now, self.rtt.least());
        self.nxt = end;
        self.last_sent = now;
        self.active = now;
        match self.recovery.forced {
            Forced::TailLossProbe => {
                self.recovery.tail = Some((end, false));
                // RFC 8985, 7.3: the timeout counts from the probe.
                self.recovery.base = now;
            }
            Forced::WindowProbe => self.recovery.probes_window = true,
            Forced::None | Forced::Lost => {}
        }
        self.recovery.forced = Forced::None;
        self.schedule_probe(now);
    }

    /// Records that data was sent again. `clock`: our clock in that segment.
    pub(super) fn note_retransmission(&mut self, now: Instant, (start, end): Block, clock: u32) {
        let is_probe = self.recovery.forced == Forced::TailLossProbe;
        self.scoreboard.retransmitted(start, end, now, self.rtt.least());
        self.last_sent = now;
        let recovery = &mut self.recovery;
        recovery.sent = recovery.sent.saturating_add(end.since(start));
        if is_probe {
            recovery.tail = Some((self.nxt, true));
        } else {
            if recovery.first_retransmission == FirstRetransmission::None {
                recovery.first_retransmission = FirstRetransmission::At(clock);
            }
        }
        if start == self.una || is_probe {
            recovery.base = now;
        }
        recovery.forced = Forced::None;
    }

    /// Plans a tail loss probe, if no loss is in question (RFC 8985, 7.2).
    pub(super) fn schedule_probe(&mut self, now: Instant) {
        let possible = self.recovery.selective
            && self.recovery.phase == Phase::Open
            && self.recovery.tail.is_none()
            && self.recovery.reorder_at.is_none()
            && !self.scoreboard.has_sacked()
            && self.is_outstanding()
            && !self.is_closed();
        self.recovery.probe_at = self.rtt.smoothed().filter(|_| possible).map(|smoothed| {
            let single = self.nxt.since(self.una) <= self.segment;
            let delay = if single { PEER_DELAY } else { Duration::ZERO };
            now + (smoothed * 2 + delay).max(LEAST_PROBE)
        });
    }
}
