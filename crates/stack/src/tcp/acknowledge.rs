//! What an acknowledgement tells of the data in flight: its delivery, losses, and the congestion
//! window that follows (sources: see `recovery`).

use std::time::Duration;

use super::congestion::Report;
use super::pool::Pool;
use super::recovery::{Acknowledgement, FirstRetransmission, Forced, Phase};
use super::scoreboard::Delivery;
use super::sending::Sending;
use super::sequence::Seq;
use crate::{Counters, Instant};

/// Duplicate acknowledgements that show a loss, from a peer without selective ones (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;
/// The longest round trip time that an echoed timestamp measures, in milliseconds.
const LONGEST_ECHO: u32 = 600_000;

impl Sending {
    /// Handles an acceptable acknowledgement.
    pub(super) fn acknowledged(
        &mut self,
        now: Instant,
        pool: &mut Pool,
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
            self.recovery.base = now;
            self.recovery.probes_window = false;
            self.recovery.ecn_reduced =
                self.recovery.ecn_reduced.filter(|end| self.una.before(*end));
            self.recovery.widened = self.recovery.widened.filter(|end| self.una.before(*end));
        }
        if self.recovery.selective && !ack.blocks.is_empty() {
            let (una, nxt) = (self.una, self.nxt);
            self.scoreboard.select(now, ack.blocks, una, nxt, least, &mut delivery);
        }
        self.measure(now, ack, progress, &delivery);
        // Once per round trip (RFC 8985, 6.2, step 4).
        if delivery.duplicate && self.recovery.widened.is_none() {
            self.recovery.widened = Some(self.nxt);
            self.scoreboard.widen();
        }
        self.end_tail_probe(ack, progress, &delivery, outstanding);
        if progress && self.judge_first_retransmission(ack) {
            counters.tcp_spurious_recoveries += 1;
            self.undo_recovery();
        }
        let newly_lost = self.detect(now, ack, progress, &mut delivery);
        let was_open = self.recovery.phase == Phase::Open;
        self.change_phase(counters, progress, newly_lost, outstanding);
        let ended = !was_open && self.recovery.phase == Phase::Open;
        if ack.ece {
            self.note_mark(counters, outstanding);
        }
        // The acknowledgement that ends a recovery leaves the window at the threshold.
        if delivery.bytes > 0 && !ended {
            self.adjust_window(now, &delivery, progress, newly_lost, was_una);
        }
        // A segment that tells nothing new does not put the tail loss probe off.
        if progress || delivery.selected || newly_lost {
            self.schedule_probe(now);
        }
    }

    /// Measures the round trip time, and ends the doubling of the timeout once it is measured
    /// (Karn's algorithm; RFC 6298, 3 and 5.7). An acknowledgement of data sent more than once
    /// measures only by timestamps (RFC 7323, 4.1).
    fn measure(
        &mut self,
        now: Instant,
        ack: &Acknowledgement<'_>,
        progress: bool,
        delivery: &Delivery,
    ) {
        let echoed = || {
            let millis = ack.clock.wrapping_sub(ack.echo?);
            (progress && millis < LONGEST_ECHO).then(|| Duration::from_millis(millis.into()))
        };
        if let Some(sample) = delivery.sample.or_else(echoed) {
            self.rtt.measure(now, sample);
            if progress {
                self.rtt.progress();
            }
        }
    }

    /// Ends a tail loss probe (RFC 8985, 7.4.2): it repaired a loss if it was a repetition, and
    /// the peer reports it only once.
    fn end_tail_probe(
        &mut self,
        ack: &Acknowledgement<'_>,
        progress: bool,
        delivery: &Delivery,
        outstanding: u32,
    ) {
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
                self.congestion.reduce(outstanding);
                self.congestion.recovered();
            }
        }
    }

    /// Returns `true` if the first copy of the data sent again arrived: the echo is older than the
    /// second copy (RFC 3522, 3.2).
    fn judge_first_retransmission(&mut self, ack: &Acknowledgement<'_>) -> bool {
        if self.recovery.phase == Phase::Open {
            return false;
        }
        let FirstRetransmission::At(first) = self.recovery.first_retransmission else {
            return false;
        };
        self.recovery.first_retransmission = FirstRetransmission::Judged;
        ack.echo.is_some_and(|echo| (echo.wrapping_sub(first) as i32) < 0)
    }

    fn undo_recovery(&mut self) {
        self.congestion.restore();
        self.scoreboard.unmark_lost();
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
            let newly_lost = is_partial && self.scoreboard.mark_first_lost(self.segment);
            if newly_lost {
                self.recovery.forced = Forced::Lost;
            }
            return newly_lost;
        }
        if !ack.is_bare || !self.is_outstanding() || ack.number != self.una {
            return false;
        }
        self.recovery.duplicates = self.recovery.duplicates.saturating_add(1);
        // Each shows that a segment left the network.
        delivery.bytes = self.segment;
        self.recovery.duplicates == DUPLICATES
            && self.recovery.phase == Phase::Open
            && self.scoreboard.mark_first_lost(self.segment)
    }

    /// Marks what is lost by time (RFC 8985). Returns `true` if there is any.
    pub(super) fn detect_by_time(&mut self, now: Instant) -> bool {
        let (least, smoothed) = (self.rtt.least(), self.round_trip());
        let recovering = self.recovery.phase != Phase::Open;
        let (newly_lost, next) =
            self.scoreboard.detect(now, least, smoothed, self.segment, recovering);
        self.recovery.reorder_at = next;
        newly_lost
    }

    /// Begins and ends recovery. `outstanding`: the bytes sent and not acknowledged before.
    pub(super) fn change_phase(
        &mut self,
        counters: &mut Counters,
        progress: bool,
        newly_lost: bool,
        outstanding: u32,
    ) {
        let passed = !self.una.before(self.recovery.point);
        let ended = progress && self.recovery.phase != Phase::Open && passed;
        if ended {
            if self.recovery.phase == Phase::Recovery {
                self.congestion.recovered();
            }
            self.scoreboard.recovered();
            self.recovery.phase = Phase::Open;
            self.recovery.first_retransmission = FirstRetransmission::None;
        }
        // Data that this phase sent and that is lost as well is a loss of the next window.
        let left = ended && self.scoreboard.has_lost();
        if (newly_lost || left) && self.recovery.phase == Phase::Open {
            counters.tcp_fast_recoveries += 1;
            self.congestion.reduce(outstanding);
            let recovery = &mut self.recovery;
            recovery.tell_reduced = true;
            recovery.phase = Phase::Recovery;
            recovery.forced = Forced::Lost;
            recovery.point = self.nxt;
            recovery.flight = outstanding.max(self.congestion.threshold());
            recovery.delivered = 0;
            recovery.sent = 0;
            recovery.first_retransmission = FirstRetransmission::None;
            recovery.tail = None;
        }
    }

    /// Reduces the window once per round trip, since a router marked a packet (RFC 3168, 6.1.2).
    fn note_mark(&mut self, counters: &mut Counters, outstanding: u32) {
        let recovery = &mut self.recovery;
        let is_old = recovery.ecn_reduced.is_some_and(|end| self.una.before(end));
        if is_old || recovery.phase != Phase::Open {
            return;
        }
        recovery.ecn_reduced = Some(self.nxt);
        recovery.tell_reduced = true;
        counters.tcp_ecn_reductions += 1;
        self.congestion.reduce(outstanding);
        self.congestion.recovered();
    }

    fn adjust_window(
        &mut self,
        now: Instant,
        delivery: &Delivery,
        progress: bool,
        newly_lost: bool,
        was_una: Seq,
    ) {
        if self.recovery.phase == Phase::Recovery {
            return self.reduce_proportionally(delivery, progress && !newly_lost);
        }
        // Only new cumulative acknowledgements let the window grow (RFC 5681, 3.1).
        if !progress {
            return;
        }
        let limited = self.limited.is_some_and(|end| !was_una.after(end));
        if !limited {
            self.limited = None;
        }
        if limited || self.recovery.phase == Phase::Loss {
            let report = Report {
                // Reported data counted when it was reported.
                bytes: self.una.since(was_una).min(delivery.bytes),
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
    pub(super) fn reduce_proportionally(&mut self, delivery: &Delivery, good: bool) {
        let threshold = self.congestion.threshold();
        let flight = self.in_flight();
        let recovery = &mut self.recovery;
        recovery.delivered = recovery.delivered.saturating_add(delivery.bytes);
        let (delivered, sent) = (recovery.delivered, recovery.sent);
        let mut allowed = if flight > threshold {
            let due = u64::from(delivered) * u64::from(threshold);
            let due = due.div_ceil(recovery.flight.max(1).into());
            u32::try_from(due).unwrap_or(u32::MAX).saturating_sub(sent)
        } else {
            let behind = delivered.saturating_sub(sent);
            let most = if good { behind.max(delivery.bytes) + self.segment } else { behind };
            most.min(threshold - flight)
        };
        if recovery.forced == Forced::Lost {
            allowed = allowed.max(self.segment);
        }
        let allowed = allowed.checked_next_multiple_of(self.segment).unwrap_or(u32::MAX);
        self.congestion.set_window(flight.saturating_add(allowed));
    }

    /// Returns the bytes in flight. A duplicate acknowledgement without selective ones tells that
    /// one segment left the network.
    pub(super) fn in_flight(&self) -> u32 {
        let left = u32::from(self.recovery.duplicates) * self.segment;
        self.scoreboard.in_flight().saturating_sub(left)
    }
}
