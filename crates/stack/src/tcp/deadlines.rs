//! The times at which a connection acts by itself: it gives up (RFC 9293, 3.8.3), probes a silent
//! peer (3.8.4), or repeats its SYN.

use super::connection::{Connection, Owner, State};
use super::receiving::AckDue;
use super::sending::Cork;
use crate::Instant;
use crate::config::TcpConfig;

impl Connection {
    /// Returns `true` if the peer has yet to acknowledge bytes or a FIN, sent or not.
    fn owes(&self) -> bool {
        self.sending.is_outstanding() || self.sending.has_unsent()
    }

    /// Starts or stops the time of a silent peer and of a dropped connection.
    pub(super) fn update_deadlines(&mut self, now: Instant, config: &TcpConfig) {
        // While the window is closed, a peer that answered the last probe is not silent (RFC 9293,
        // 3.8.6.1).
        let sending = &self.sending;
        let answered = sending.is_closed() && self.last_received >= sending.last_sent;
        if !self.owes() || answered {
            self.waiting = None;
        } else if self.waiting.is_none_or(|(_, first)| first != sending.una) {
            self.waiting = Some((now, sending.una));
        }
        if self.owner == Owner::None && !self.detached && self.give_up_at.is_none() {
            self.give_up_at = Some(now + config.orphan_timeout);
        }
    }

    /// Returns the time at which to give the connection up, in its present state.
    pub(super) fn gives_up_at(&self, config: &TcpConfig) -> Option<Instant> {
        // A peer that acknowledges nothing new counts as silent (RFC 9293, 3.8.3).
        let timeout = self.user_timeout.unwrap_or(config.user_timeout);
        let silent = self
            .waiting
            .filter(|_| !self.state.is_opening() && self.state != State::Closed)
            .map(|(since, _)| since + timeout);
        [self.give_up_at, silent].into_iter().flatten().min()
    }

    /// Ends the waiting that [`Connection::gives_up_at`] reported as too long.
    pub(super) fn clear_deadlines(&mut self) {
        self.give_up_at = None;
        self.waiting = None;
        self.keep_alive = None;
    }

    /// Returns when to probe a silent peer, or to give it up.
    pub(super) fn keep_alive_at(&self) -> Option<Instant> {
        let keep_alive = self.keep_alive?;
        let ends = self.state.is_opening() || self.state.is_over();
        let next = match self.probes {
            0 => self.last_received + keep_alive.idle,
            // From the last one that was sent: the answer to a late probe has as much time as to another.
            _ => self.last_probe + keep_alive.interval,
        };
        (!ends).then_some(next)
    }

    /// Counts an unanswered keep-alive, if one is due, and demands the next one. Returns `true` if
    /// there were too many.
    pub(super) fn probe_peer(&mut self, now: Instant) -> bool {
        let Some(keep_alive) = self.keep_alive else { return false };
        if self.keep_alive_at().is_none_or(|at| at > now) {
            return false;
        }
        if self.probes >= keep_alive.probes {
            return true;
        }
        (self.probes, self.last_probe) = (self.probes + 1, now);
        self.probe_due = true;
        false
    }

    /// Returns when our SYN has waited too long for its answer.
    pub(super) fn syn_timeout_at(&self) -> Option<Instant> {
        let sending = &self.sending;
        let waits = self.state.is_opening() && !self.syn_due && sending.is_outstanding();
        waits.then(|| sending.last_sent + sending.rtt.timeout())
    }

    /// Returns when to visit the connection next, if neither a segment nor the application comes
    /// before.
    pub(super) fn wake_at(&self, config: &TcpConfig) -> Option<Instant> {
        if self.detached {
            return None;
        }
        let acknowledge = match self.receiving.due {
            AckDue::At(at) => Some(at),
            AckDue::Now | AckDue::No => None,
        };
        let send = match self.state {
            State::SynSent | State::SynReceived => self.syn_timeout_at(),
            State::TimeWait | State::Closed => None,
            _ => self.sending.deadline(),
        };
        let corked = match self.sending.cork {
            Cork::Until(at) => Some(at),
            Cork::Off | Cork::On | Cork::Over => None,
        };
        let times = [acknowledge, corked, send, self.keep_alive_at(), self.gives_up_at(config)];
        times.into_iter().flatten().min()
    }
}
