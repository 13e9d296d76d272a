//! The timers of sent data: the retransmission timeout (RFC 6298), tail loss probes and reordering
//! (RFC 8985), and probes of a closed window (RFC 9293, 3.8.6.1).

use super::recovery::{FirstRetransmission, Forced, Phase};
use super::scoreboard::Delivery;
use super::sending::Sending;
use crate::{Counters, Instant};

impl Sending {
    /// Returns when to call [`Sending::expired`].
    pub(super) fn deadline(&self) -> Option<Instant> {
        let recovery = &self.recovery;
        if recovery.forced != Forced::None {
            return None;
        }
        if self.is_outstanding() {
            let timeout = recovery.base + self.rtt.timeout();
            let earlier = recovery.reorder_at.or(recovery.probe_at);
            return Some(earlier.map_or(timeout, |at| at.min(timeout)));
        }
        // The peer's window holds everything back: probe it.
        let unsent = self.end().since(self.nxt);
        let blocked = self.has_unsent() && self.usable() < self.segment.min(unsent);
        blocked.then(|| recovery.base.max(self.last_sent) + self.rtt.timeout())
    }

    /// Handles a passed deadline. Returns `true` if it is the retransmission timeout.
    pub(super) fn expired(&mut self, now: Instant, counters: &mut Counters) -> bool {
        if self.deadline().is_none_or(|at| at > now) {
            return false;
        }
        if !self.is_outstanding() {
            self.rtt.back_off();
            self.recovery.forced = Forced::WindowProbe;
            return false;
        }
        // A tail loss probe that would come later than the timeout takes its place (RFC 8985,
        // 7.2).
        if now >= self.recovery.base + self.rtt.timeout() && self.recovery.probe_at.is_none() {
            self.timed_out(counters);
            return true;
        }
        if self.recovery.reorder_at.take().is_some_and(|at| at <= now) {
            let outstanding = self.nxt.since(self.una);
            let newly_lost = self.detect_by_time(now);
            self.change_phase(counters, false, newly_lost, outstanding);
            if newly_lost && self.recovery.phase == Phase::Recovery {
                self.reduce_proportionally(&Delivery::default(), false);
            }
        } else if self.recovery.probe_at.take().is_some() {
            counters.tcp_tail_probes += 1;
            self.recovery.forced = Forced::TailLossProbe;
        }
        false
    }

    /// Handles the retransmission timeout (RFC 6298, 5.4 to 5.6).
    fn timed_out(&mut self, counters: &mut Counters) {
        counters.tcp_retransmission_timeouts += 1;
        self.recovery.probe_at = None;
        self.recovery.reorder_at = None;
        self.recovery.tail = None;
        self.recovery.duplicates = 0;
        let again = self.rtt.backoff() > 0;
        // The first segment goes again whatever the peer reported of it (RFC 2018, 8).
        if again || self.scoreboard.is_first_sacked() {
            self.scoreboard.forget_selected();
        }
        self.rtt.back_off();
        self.scoreboard.mark_all_lost();
        self.recovery.forced = Forced::Lost;
        // A closed window is no evidence about the path.
        if self.is_closed() {
            return;
        }
        if self.recovery.phase != Phase::Loss {
            self.recovery.first_retransmission = FirstRetransmission::None;
        }
        let flight = self.nxt.since(self.una);
        self.congestion.timed_out(flight, again || self.recovery.phase == Phase::Loss);
        self.recovery.tell_reduced = true;
        self.recovery.phase = Phase::Loss;
        self.recovery.point = self.nxt;
    }

    /// Handles the end of the time in which the peer's window was closed: data sent as a probe did
    /// not fit, and fits now.
    pub(super) fn opened(&mut self, now: Instant) {
        self.rtt.progress();
        self.recovery.base = now;
        if std::mem::take(&mut self.recovery.probes_window) {
            self.scoreboard.mark_all_lost();
            self.recovery.forced = Forced::Lost;
        } else if self.recovery.forced == Forced::WindowProbe {
            self.recovery.forced = Forced::None;
        }
    }

    /// Makes all data in flight count as lost, since the path carries only smaller packets.
    pub(super) fn resend(&mut self) {
        if self.is_outstanding() {
            self.scoreboard.mark_all_lost();
            self.recovery.forced = Forced::Lost;
        }
    }
}
