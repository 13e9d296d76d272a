//! Loss detection and recovery: acknowledgements, timeouts, and what they do to the congestion
//! window.
//!
//! | source | used for |
//! |---|---|
//! | RFC 8985 | detection by time (RACK), probes of the tail (TLP) |
//! | RFC 6675, RFC 6582 | recovery with selective acknowledgements, and without (NewReno) |
//! | RFC 6937 | the window during recovery (proportional rate reduction) |
//! | RFC 6298 | the retransmission timeout |
//! | RFC 3522, RFC 4015 | taking back a recovery that nothing was lost for (Eifel) |
//! | RFC 3168 | the reaction to marks of routers |

use std::time::Duration;

use super::congestion::Report;
use super::options::Block;
use super::scoreboard::Delivery;
use super::sending::Sending;
use super::sequence::Seq;
use crate::{Counters, Instant};

/// Duplicate acknowledgements that show a loss, from a peer without selective ones (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;
/// The time that a peer may delay the acknowledgement of a single segment (RFC 8985, 7.2, has
/// 200 ms, the usual value of its time).
const PEER_DELAY: Duration = Duration::from_millis(50);
/// The least time before a probe of the tail.
const LEAST_PROBE: Duration = Duration::from_millis(10);

/// The state of loss recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// Nothing counts as lost.
    #[default]
    Open,
    /// Lost data is sent again, at the pace of the acknowledgements.
    Recovery,
    /// The retransmission timeout passed.
    Loss,
}

/// A segment that the connection has to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Forced {
    #[default]
    None,
    /// The first lost segment, whatever the congestion window.
    Lost,
    /// A probe of the tail: new data, or the last segment again.
    Tail,
    /// One byte beyond the peer's closed window.
    Window,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    pub(super) phase: Phase,
    pub(super) forced: Forced,
    /// The end of the data sent when the phase began.
    point: Seq,
    /// Bytes in flight when recovery began; bytes reported and sent since (RFC 6937, 3).
    flight: u32,
    delivered: u32,
    sent: u32,
    /// Duplicate acknowledgements, from a peer without selective ones.
    duplicates: u8,
    /// Our clock at the first retransmission, by which an earlier echo shows that nothing was lost.
    first_again: Option<u32>,
    /// A probe of the tail in flight: the end of the data then, and `true` if it was sent before.
    tail: Option<(Seq, bool)>,
    /// The end of the data sent when a router's mark reduced the window last.
    marked: Option<Seq>,
    /// `true` if the next new data is to tell the peer of the reduction (CWR).
    pub(super) tell_reduced: bool,
    /// The start of the retransmission timeout.
    base: Instant,
    /// The time when data may count as lost, and the time of the next probe of the tail.
    reorder_at: Option<Instant>,
    probe_at: Option<Instant>,
    has_sent: bool,
    /// `true` while a probe of the peer's closed window is in flight.
    probes_window: bool,
    /// `true` if the peer reports received data selectively.
    pub(super) selective: bool,
}

impl Recovery {
    /// Returns `true` once data was sent.
    pub(super) fn has_sent(&self) -> bool {
        self.has_sent
    }
}

/// An acknowledgement of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acknowledgement<'a> {
    pub(super) number: Seq,
    pub(super) blocks: &'a [Block],
    /// `true` if it could be a duplicate: no data, no new window.
    pub(super) is_bare: bool,
    /// The peer's echo of our clock.
    pub(super) echo: Option<u32>,
    /// `true` if a router marked a packet of ours (ECE).
    pub(super) marked: bool,
}

impl Sending {
    /// Handles an acceptable acknowledgement.
    pub(super) fn acknowledged(
        &mut self,
        now: Instant,
        pool: &mut super::pool::Pool,
        counters: &mut Counters,
        ack: &Acknowledgement<'_>,
    ) {
        let progress = ack.number.after(self.una);
        let was_una = self.una;
        let outstanding = self.nxt.since(self.una);
        let least = self.rtt.least();
        let mut delivery = Delivery::default();
        if progress {
            self.scoreboard.acknowledge(now, ack.number, least, &mut delivery);
            self.advance(pool, ack.number);
            self.rtt.progress();
            self.recovery.base = now;
            self.recovery.probes_window = false;
        }
        if self.recovery.selective && !ack.blocks.is_empty() {
            let bounds = (self.una, self.nxt);
            self.scoreboard.select(now, ack.blocks, bounds, least, &mut delivery);
        }
        if let Some(sample) = delivery.sample {
            self.rtt.measure(now, sample);
        }
        if delivery.duplicate {
            self.scoreboard.widen();
        }
        self.end_tail_probe(ack, progress, &delivery);
        if progress && self.was_nothing_lost(ack) {
            counters.tcp_spurious_recoveries += 1;
            self.take_back();
        }
        let marked = self.detect(now, ack, progress, &mut delivery);
        self.change_phase(counters, progress, marked, outstanding);
        if ack.marked {
            self.note_mark(counters);
        }
        if delivery.bytes > 0 {
            self.adjust_window(now, &delivery, progress, marked, was_una);
        }
        self.schedule_probe(now);
    }

    /// Ends a probe of the tail (RFC 8985, 7.4.2): it repaired a loss if it was a repetition, and
    /// the peer reports it only once.
    fn end_tail_probe(&mut self, ack: &Acknowledgement<'_>, progress: bool, delivery: &Delivery) {
        let Some((end, again)) = self.recovery.tail else { return };
        if ack.number.before(end) {
            return;
        }
        let twice = delivery.duplicate || (!progress && ack.number == end && ack.is_bare);
        if !again || twice {
            self.recovery.tail = None;
        } else if ack.number.after(end) {
            self.recovery.tail = None;
            if self.recovery.phase == Phase::Open {
                self.congestion.reduce();
                self.congestion.recovered();
            }
        }
    }

    /// Returns `true` if the first copy of the data sent again arrived: the echo is older than the
    /// second copy (RFC 3522, 3.2).
    fn was_nothing_lost(&mut self, ack: &Acknowledgement<'_>) -> bool {
        if self.recovery.phase == Phase::Open {
            return false;
        }
        let (Some(first), Some(echo)) = (self.recovery.first_again.take(), ack.echo) else {
            return false;
        };
        (echo.wrapping_sub(first) as i32) < 0
    }

    fn take_back(&mut self) {
        self.congestion.restore();
        self.scoreboard.lose_none();
        self.recovery.phase = Phase::Open;
        self.recovery.forced = Forced::None;
    }

    /// Detects losses. Returns `true` if data counts as lost that did not before.
    fn detect(
        &mut self,
        now: Instant,
        ack: &Acknowledgement<'_>,
        progress: bool,
        delivery: &mut Delivery,
    ) -> bool {
        if self.recovery.selective {
            return self.detect_by_time(now);
        }
        let recovering = self.recovery.phase == Phase::Recovery;
        if progress {
            self.recovery.duplicates = 0;
            // A partial acknowledgement shows the next loss (RFC 6582, 3.2, step 3).
            let is_partial = recovering && ack.number.before(self.recovery.point);
            let marked = is_partial && self.scoreboard.lose_first(self.segment);
            if marked {
                self.recovery.forced = Forced::Lost;
            }
            return marked;
        }
        if !ack.is_bare || !self.is_outstanding() || ack.number != self.una {
            return false;
        }
        self.recovery.duplicates = self.recovery.duplicates.saturating_add(1);
        // Each shows that a segment left the network.
        delivery.bytes = self.segment;
        self.recovery.duplicates == DUPLICATES
            && self.recovery.phase == Phase::Open
            && self.scoreboard.lose_first(self.segment)
    }

    fn detect_by_time(&mut self, now: Instant) -> bool {
        let times = (self.rtt.least(), self.round_trip());
        let recovering = self.recovery.phase != Phase::Open;
        let (marked, next) = self.scoreboard.detect(now, times, self.segment, recovering);
        self.recovery.reorder_at = next;
        marked
    }

    /// Begins and ends recovery. `outstanding`: the bytes sent and not acknowledged before.
    fn change_phase(
        &mut self,
        counters: &mut Counters,
        progress: bool,
        marked: bool,
        outstanding: u32,
    ) {
        if progress && self.recovery.phase != Phase::Open && !self.una.before(self.recovery.point) {
            if self.recovery.phase == Phase::Recovery {
                self.congestion.recovered();
            }
            self.scoreboard.recovered();
            self.recovery.phase = Phase::Open;
            self.recovery.first_again = None;
        }
        if marked && self.recovery.phase == Phase::Open {
            counters.tcp_fast_recoveries += 1;
            self.congestion.reduce();
            let recovery = &mut self.recovery;
            recovery.phase = Phase::Recovery;
            recovery.forced = Forced::Lost;
            recovery.point = self.nxt;
            recovery.flight = outstanding.max(1);
            recovery.delivered = 0;
            recovery.sent = 0;
            recovery.first_again = None;
            recovery.tail = None;
        }
    }

    /// Reduces the window once per round trip, since a router marked a packet (RFC 3168, 6.1.2).
    fn note_mark(&mut self, counters: &mut Counters) {
        let recovery = &mut self.recovery;
        let is_old = recovery.marked.is_some_and(|end| self.una.before(end));
        if is_old || recovery.phase != Phase::Open {
            return;
        }
        recovery.marked = Some(self.nxt);
        recovery.tell_reduced = true;
        counters.tcp_ecn_reductions += 1;
        self.congestion.reduce();
        self.congestion.recovered();
    }

    fn adjust_window(
        &mut self,
        now: Instant,
        delivery: &Delivery,
        progress: bool,
        marked: bool,
        was_una: Seq,
    ) {
        if self.recovery.phase == Phase::Recovery {
            return self.pace_recovery(delivery, progress && !marked);
        }
        let limited = self.limited.is_some_and(|end| !was_una.after(end));
        if limited || self.recovery.phase == Phase::Loss {
            let report = Report {
                bytes: delivery.bytes,
                sample: delivery.sample,
                smoothed: self.round_trip(),
                acknowledged: self.una,
                sent_to: self.nxt,
            };
            self.congestion.acknowledged(now, &report);
        }
    }

    /// Sets the window so that the bytes sent follow those delivered (RFC 6937, 3.1). `good`: the
    /// acknowledgement shows progress and no further loss, so that the window may grow again.
    fn pace_recovery(&mut self, delivery: &Delivery, good: bool) {
        let threshold = self.congestion.threshold();
        let flight = self.in_flight();
        let recovery = &mut self.recovery;
        recovery.delivered = recovery.delivered.saturating_add(delivery.bytes);
        let (delivered, sent) = (recovery.delivered, recovery.sent);
        let mut allowed = if flight > threshold {
            let due = u64::from(delivered) * u64::from(threshold);
            (due.div_ceil(recovery.flight.into()) as u32).saturating_sub(sent)
        } else {
            let behind = delivered.saturating_sub(sent);
            let most = if good { behind.max(delivery.bytes) + self.segment } else { behind };
            most.min(threshold - flight)
        };
        if recovery.forced == Forced::Lost {
            allowed = allowed.max(self.segment);
        }
        self.congestion.set_window(flight + allowed.next_multiple_of(self.segment));
    }

    /// Returns the bytes in flight. A duplicate acknowledgement without selective ones tells that
    /// one segment left the network.
    pub(super) fn in_flight(&self) -> u32 {
        let left = u32::from(self.recovery.duplicates) * self.segment;
        self.scoreboard.in_flight().saturating_sub(left)
    }

    /// Records that data was sent for the first time.
    pub(super) fn note_sent(&mut self, now: Instant, start: Seq, end: Seq) {
        if !self.is_outstanding() {
            self.recovery.base = now;
        }
        self.recovery.has_sent = true;
        self.recovery.sent = self.recovery.sent.saturating_add(end.since(start));
        self.scoreboard.sent(start, end, now);
        self.nxt = end;
        self.last_sent = now;
        match self.recovery.forced {
            Forced::Tail => self.recovery.tail = Some((end, false)),
            Forced::Window => self.recovery.probes_window = true,
            Forced::None | Forced::Lost => {}
        }
        self.recovery.forced = Forced::None;
        self.schedule_probe(now);
    }

    /// Records that data was sent again. `clock`: our clock in that segment.
    pub(super) fn note_again(&mut self, now: Instant, (start, end): Block, clock: u32) {
        let is_probe = self.recovery.forced == Forced::Tail;
        self.scoreboard.split_at(start);
        self.scoreboard.sent_again(start, end, now);
        self.last_sent = now;
        let recovery = &mut self.recovery;
        recovery.sent = recovery.sent.saturating_add(end.since(start));
        if is_probe {
            recovery.tail = Some((self.nxt, true));
        } else {
            recovery.first_again.get_or_insert(clock);
        }
        if start == self.una || is_probe {
            recovery.base = now;
        }
        recovery.forced = Forced::None;
    }

    /// Plans a probe of the tail, if no loss is in question (RFC 8985, 7.2).
    fn schedule_probe(&mut self, now: Instant) {
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
        let blocked = self.has_unsent() && self.usable() < self.segment;
        blocked.then(|| recovery.base.max(self.last_sent) + self.rtt.timeout())
    }

    /// Handles a passed deadline.
    pub(super) fn expired(&mut self, now: Instant, counters: &mut Counters) {
        if self.deadline().is_none_or(|at| at > now) {
            return;
        }
        if !self.is_outstanding() {
            self.rtt.back_off();
            self.recovery.forced = Forced::Window;
            return;
        }
        if now >= self.recovery.base + self.rtt.timeout() {
            return self.timed_out(counters);
        }
        if self.recovery.reorder_at.take().is_some_and(|at| at <= now) {
            let outstanding = self.nxt.since(self.una);
            let marked = self.detect_by_time(now);
            self.change_phase(counters, false, marked, outstanding);
            if marked && self.recovery.phase == Phase::Recovery {
                self.pace_recovery(&Delivery::default(), false);
            }
        } else if self.recovery.probe_at.take().is_some() {
            counters.tcp_tail_probes += 1;
            self.recovery.forced = Forced::Tail;
        }
    }

    /// Handles the retransmission timeout (RFC 6298, 5.4 to 5.6).
    fn timed_out(&mut self, counters: &mut Counters) {
        counters.tcp_retransmission_timeouts += 1;
        self.recovery.probe_at = None;
        self.recovery.reorder_at = None;
        self.recovery.tail = None;
        self.recovery.duplicates = 0;
        let again = self.rtt.backoff() > 0;
        if again {
            self.scoreboard.forget_selected();
        }
        self.rtt.back_off();
        self.scoreboard.lose_all();
        self.recovery.forced = Forced::Lost;
        // A closed window says nothing of the path.
        if self.is_closed() {
            return;
        }
        if self.recovery.phase != Phase::Loss {
            self.recovery.first_again = None;
        }
        self.congestion.timed_out(again || self.recovery.phase == Phase::Loss);
        self.recovery.phase = Phase::Loss;
        self.recovery.point = self.nxt;
    }

    /// Handles the end of the time in which the peer's window was closed: what was sent as a probe
    /// did not fit, and fits now.
    pub(super) fn opened(&mut self, now: Instant) {
        self.rtt.progress();
        self.recovery.base = now;
        if std::mem::take(&mut self.recovery.probes_window) {
            self.scoreboard.lose_all();
            self.recovery.forced = Forced::Lost;
        } else if self.recovery.forced == Forced::Window {
            self.recovery.forced = Forced::None;
        }
    }

    /// Makes all data in flight count as lost, since the path carries only smaller packets.
    pub(super) fn resend(&mut self) {
        if self.is_outstanding() {
            self.scoreboard.lose_all();
            self.recovery.forced = Forced::Lost;
        }
    }
}
