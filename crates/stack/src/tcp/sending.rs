//! The sending direction of a connection: its sequence numbers, its buffer, the peer's window
//! (RFC 9293, 3.3.1 and 3.8.6).

use std::time::Duration;

use super::buffer::SendBuffer;
use super::congestion::Congestion;
use super::pool::Pool;
use super::recovery::Recovery;
use super::rtt::Rtt;
use super::scoreboard::Scoreboard;
use super::sequence::Seq;
use crate::Instant;
use crate::config::CongestionControl;

/// The least room for written data, whatever the congestion window.
const LEAST_ROOM: usize = 256 * 1024;

/// The longest time for which a cork holds a small segment back, as on Linux.
const CORK_TIME: Duration = Duration::from_millis(200);

/// Whether a connection holds small segments back (`TCP_CORK`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cork {
    Off,
    /// No small segment waits.
    On,
    /// A small segment waits until that time.
    Until(Instant),
    /// A small segment has waited for long enough.
    Over,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sending {
    /// The first number that the peer has not acknowledged (SND.UNA).
    pub(super) una: Seq,
    /// The end of everything ever sent (SND.NXT).
    pub(super) nxt: Seq,
    /// The peer's window in bytes (SND.WND), its largest value, and the segment that told it
    /// (SND.WL1, SND.WL2).
    pub(super) window: u32,
    pub(super) max_window: u32,
    told_by: (Seq, Seq),
    /// The shift of the peer's windows (RFC 7323, 2.2).
    pub(super) shift: u8,
    pub(super) buffer: SendBuffer,
    /// The number of the buffer's first byte.
    pub(super) base: Seq,
    /// `true` once the application ended this direction: a FIN follows the buffer.
    pub(super) finish: bool,
    /// The end of the urgent data (SND.UP), until it is acknowledged.
    pub(super) urgent: Option<Seq>,
    /// Payload bytes of a full segment.
    pub(super) segment: u32,
    /// `true` to send small segments at once.
    pub(super) nodelay: bool,
    /// Whether small segments are held back, also by an idle connection.
    pub(super) cork: Cork,
    /// The end of the last small segment: Nagle's algorithm holds the next one back until this one
    /// is acknowledged.
    pub(super) small: Option<Seq>,
    /// The end of the sent data when the congestion window last held data back.
    pub(super) limited: Option<Seq>,
    pub(super) last_sent: Instant,
    /// The last time when the congestion window was in use, or was adapted to a pause.
    pub(super) active: Instant,
    pub(super) scoreboard: Scoreboard,
    pub(super) congestion: Congestion,
    pub(super) rtt: Rtt,
    pub(super) recovery: Recovery,
}

impl Sending {
    pub(super) fn new(initial: Seq, segment: u32, control: CongestionControl) -> Sending {
        Sending {
            una: initial,
            nxt: initial,
            window: 0,
            max_window: 0,
            told_by: (Seq(0), Seq(0)),
            shift: 0,
            buffer: SendBuffer::default(),
            base: initial + 1,
            finish: false,
            urgent: None,
            segment,
            nodelay: false,
            cork: Cork::Off,
            small: None,
            limited: None,
            last_sent: Instant::ZERO,
            active: Instant::ZERO,
            scoreboard: Scoreboard::default(),
            congestion: Congestion::new(control, segment),
            rtt: Rtt::default(),
            recovery: Recovery::default(),
        }
    }

    /// Returns `true` if a small segment may be sent now. Begins the time of a cork.
    pub(super) fn may_send_small(&mut self, now: Instant) -> bool {
        if self.finish {
            return true;
        }
        match self.cork {
            Cork::Off => self.nodelay || self.small.is_none(),
            // Urgent data does not wait, as on Linux.
            Cork::On | Cork::Until(_) if self.urgent.is_some() => true,
            Cork::On => {
                self.cork = Cork::Until(now + CORK_TIME);
                false
            }
            Cork::Until(_) => false,
            Cork::Over => true,
        }
    }

    /// Lets the small segment through that a cork has held back for long enough.
    pub(super) fn pass_time(&mut self, now: Instant) {
        if let Cork::Until(at) = self.cork
            && at <= now
        {
            self.cork = Cork::Over;
        }
    }

    /// Begins the time of a cork anew, after a segment was sent.
    pub(super) fn cork_again(&mut self) {
        if self.cork != Cork::Off {
            self.cork = Cork::On;
        }
    }

    /// Returns the number after the last written byte.
    pub(super) fn data_end(&self) -> Seq {
        self.base + self.buffer.len() as u32
    }

    /// Returns the number after everything to send, a FIN included.
    pub(super) fn end(&self) -> Seq {
        self.data_end() + u32::from(self.finish)
    }

    /// Returns `true` if the peer has acknowledged our FIN.
    pub(super) fn is_finished(&self) -> bool {
        self.finish && self.una == self.end()
    }

    /// Returns `true` if sent data or a FIN is not acknowledged.
    pub(super) fn is_outstanding(&self) -> bool {
        self.una != self.nxt
    }

    /// Returns `true` if anything waits to be sent for the first time.
    pub(super) fn has_unsent(&self) -> bool {
        self.nxt != self.end()
    }

    /// Returns the number of bytes that the peer's window still allows.
    pub(super) fn usable(&self) -> u32 {
        let edge = self.una + self.window;
        if edge.after(self.nxt) { edge.since(self.nxt) } else { 0 }
    }

    /// Returns `true` if the peer's window is closed to all data.
    pub(super) fn is_closed(&self) -> bool {
        self.window == 0
    }

    /// Returns the number of bytes that the application may write.
    pub(super) fn room(&self, most: usize) -> usize {
        let window = self.congestion.window() as usize;
        let limit = window.saturating_mul(2).max(LEAST_ROOM).min(most);
        limit.saturating_sub(self.buffer.len())
    }

    /// Returns `true` if a quarter of the room is free: worth a report to a waiting application.
    pub(super) fn has_much_room(&self, most: usize) -> bool {
        self.room(most) * 3 >= self.buffer.len()
    }

    /// Takes the peer's window from a segment, unless a later segment told it already (RFC 9293,
    /// 3.10.7.4). Returns `true` if the window opened.
    pub(super) fn take_window(&mut self, number: Seq, acknowledgement: Seq, window: u32) -> bool {
        let (by, at) = self.told_by;
        let is_newer = by.before(number) || by == number && !at.after(acknowledgement);
        if !is_newer {
            return false;
        }
        self.told_by = (number, acknowledgement);
        let opened = self.window == 0 && window > 0;
        self.window = window;
        self.max_window = self.max_window.max(window);
        opened
    }

    /// Takes the window of a SYN over, which is not scaled.
    pub(super) fn take_first_window(&mut self, number: Seq, acknowledgement: Seq, window: u32) {
        self.told_by = (number, acknowledgement);
        self.window = window;
        self.max_window = self.max_window.max(window);
    }

    /// Advances to the peer's acknowledgement.
    pub(super) fn advance(&mut self, pool: &mut Pool, to: Seq) {
        let bytes = if to.after(self.base) { to.since(self.base) as usize } else { 0 };
        let bytes = bytes.min(self.buffer.len());
        self.buffer.advance(pool, bytes);
        self.base = self.base + bytes as u32;
        self.una = to;
        self.small = self.small.filter(|end| to.before(*end));
        self.urgent = self.urgent.filter(|end| to.before(*end));
    }

    /// Sets the payload bytes of a full segment.
    pub(super) fn set_segment(&mut self, segment: u32) {
        let is_fresh = !self.recovery.has_sent;
        self.segment = segment.max(1);
        self.congestion.set_segment(self.segment, is_fresh);
    }

    /// Returns the smoothed round trip time, or a second without a measurement.
    pub(super) fn round_trip(&self) -> Duration {
        self.rtt.smoothed().unwrap_or(Duration::from_secs(1))
    }

    /// Shrinks the congestion window after a pause of the application (RFC 5681, 4.1).
    pub(super) fn note_pause(&mut self, now: Instant) {
        if !self.is_outstanding() {
            let pause = now.since(self.active);
            let timeout = self.rtt.timeout();
            if pause > timeout && self.recovery.has_sent {
                self.congestion.paused(pause, timeout);
                self.active = now;
            }
            self.congestion.unused(now);
        }
    }
}
