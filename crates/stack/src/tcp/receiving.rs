//! The receiving direction of a connection: data in and out of order, the window (RFC 9293, 3.8.6),
//! and when to acknowledge (RFC 1122, 4.2.3.2; RFC 5681, 4.2).

use std::time::Duration;

use super::buffer::ReceiveBuffer;
use super::out_of_order::OutOfOrder;
use super::pool::Pool;
use super::sequence::Seq;
use crate::{Counters, Instant, TcpConfig};

/// The window at the start of a connection, in bytes, unless the configured one is smaller. It
/// grows while the application keeps up with the peer.
const FIRST_WINDOW: u32 = 256 * 1024;
/// The size of a full segment, as long as the peer sent no larger one (RFC 9293, 3.7.1).
const LEAST_SEGMENT: u32 = 536;
/// The bytes that each connection may hold in one direction while memory is short.
pub(super) const BYTES_UNDER_PRESSURE: usize = 16 * 1024;
/// The least time over which reads are counted. A longer one would let windows of short paths grow
/// beyond the packets that a link can hold.
const LEAST_ROUND: Duration = Duration::from_millis(1);
/// The largest value of the window's field.
const FIELD: u32 = 0xffff;

/// Whether an acknowledgement is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AckDue {
    #[default]
    No,
    /// At that time, unless it goes with data before.
    At(Instant),
    Now,
}

/// Returns the window's field in a SYN, for a buffer of the configured size: a SYN's window is not
/// scaled.
pub(super) fn first_window(most: usize) -> u16 {
    FIRST_WINDOW.min(most as u32).min(FIELD) as u16
}

/// See the module.
#[derive(Debug)]
pub(super) struct Receiving {
    /// The next number expected (RCV.NXT).
    pub(super) nxt: Seq,
    /// The end of the window as the peer knows it.
    edge: Seq,
    /// The furthest end that the peer was told. A full buffer's window ends before.
    furthest: Seq,
    /// The shift of our windows (RFC 7323, 2.2).
    pub(super) shift: u8,
    pub(super) buffer: ReceiveBuffer,
    pub(super) out_of_order: OutOfOrder,
    /// The present size of the window in bytes, if the application has read everything, and its
    /// limit.
    limit: u32,
    most: u32,
    /// The limit on a path shorter than [`LEAST_ROUND`], unless the path itself holds more.
    short_path: u32,
    /// `true` once the peer ended its direction, and everything before arrived.
    pub(super) finished: bool,
    /// The number of a FIN that arrived ahead of a gap.
    finish_at: Option<Seq>,
    /// The last acknowledgement sent.
    pub(super) acknowledged: Seq,
    /// Bytes in order since then.
    unacknowledged: u32,
    pub(super) due: AckDue,
    /// The number of acknowledgements due, if the peer counts duplicates.
    pub(super) duplicates: u8,
    /// The largest segment of the peer so far, and the largest that our SYN allows.
    segment: u32,
    full: u32,
    /// The peer's clock, to echo, and when it was taken (TS.Recent).
    pub(super) recent: u32,
    pub(super) recent_at: Instant,
    /// The end of the urgent data (RCV.UP).
    pub(super) urgent: Option<Seq>,
    /// Bytes read by the application in the present round trip and in the one before, and the start
    /// of the present one.
    read: u32,
    read_before: u32,
    round: Instant,
    /// `true` while the peer is to be told of a router's mark (RFC 3168, 6.1.3).
    pub(super) echo_mark: bool,
}

impl Receiving {
    /// Creates the direction for a peer whose SYN has the number `initial`. `shift`: the one that
    /// our SYN offers; `full`: the largest segment.
    pub(super) fn new(initial: Seq, config: &TcpConfig, shift: u8, full: u32) -> Receiving {
        let most = config.receive_buffer_bytes as u32;
        let nxt = initial + 1;
        Receiving {
            nxt,
            edge: nxt,
            furthest: nxt,
            shift,
            buffer: ReceiveBuffer::default(),
            out_of_order: OutOfOrder::default(),
            limit: FIRST_WINDOW.min(most),
            short_path: config.short_path_bytes as u32,
            most,
            finished: false,
            finish_at: None,
            acknowledged: nxt,
            unacknowledged: 0,
            due: AckDue::No,
            duplicates: 0,
            segment: LEAST_SEGMENT.min(full),
            full,
            recent: 0,
            recent_at: Instant::ZERO,
            urgent: None,
            read: 0,
            read_before: 0,
            round: Instant::ZERO,
            echo_mark: false,
        }
    }

    /// Begins with the state of a new direction, and keeps the empty memory.
    pub(super) fn begin(&mut self, mut new: Receiving) {
        std::mem::swap(&mut new.buffer, &mut self.buffer);
        std::mem::swap(&mut new.out_of_order, &mut self.out_of_order);
        *self = new;
    }

    /// Returns the window in the peer's view.
    pub(super) fn window(&self) -> u32 {
        self.edge.since(self.nxt)
    }

    /// Returns the window that the buffer allows now. `under_pressure`: memory is short, so the
    /// window has no more than a few segments.
    fn free(&self, under_pressure: bool) -> u32 {
        let free = self.limit.saturating_sub(self.buffer.len() as u32);
        if under_pressure { free.min(4 * self.full) } else { free }
    }

    /// Returns by how much the window may move at least: less would invite small segments
    /// (RFC 9293, 3.8.6.2.2).
    fn step(&self) -> u32 {
        (self.limit / 2).min(self.full).max(1)
    }

    /// Returns the value of the window's field in the next segment, and the end of the window that
    /// it tells, for [`Receiving::advertised`]. `is_syn`: the segment has a SYN, whose window is
    /// not scaled. `under_pressure`: as for [`Receiving::free`].
    pub(super) fn offer(&self, is_syn: bool, under_pressure: bool) -> (u16, Seq) {
        let free = self.free(under_pressure);
        let wanted = self.nxt + free;
        let mut edge = self.edge;
        if wanted.after(edge) && wanted.since(edge) >= self.step() {
            edge = wanted;
        }
        let shift = if is_syn { 0 } else { self.shift };
        let unit = 1u32 << shift;
        let window = edge.since(self.nxt);
        // The end does not move back (RFC 9293, 3.8.6), so the field rounds up; but not for ever,
        // if the application reads nothing: a full buffer rounds down to a closed window.
        let field = match free == 0 && window < unit {
            true => 0,
            false => window.div_ceil(unit).min(FIELD),
        };
        (field as u16, self.nxt + (field << shift))
    }

    /// Records that the peer knows the window of our SYN or of its answer.
    pub(super) fn advertise_first(&mut self) {
        let (_, edge) = self.offer(true, false);
        self.advertised(edge);
    }

    /// Records the end of the window that a sent segment told the peer.
    pub(super) fn advertised(&mut self, edge: Seq) {
        self.edge = edge;
        self.furthest = self.furthest.max(edge);
    }

    /// Returns the furthest number that a segment without data may have: the peer may have sent up
    /// to the end of an earlier window.
    pub(super) fn furthest(&self) -> Seq {
        self.furthest.max(self.edge).max(self.nxt)
    }

    /// Returns the size of the window if the application has read everything.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns `true` if the application's reads opened the window so far that the peer should know
    /// at once: at least twice what it knows of. `under_pressure`: as for [`Receiving::free`].
    pub(super) fn should_update(&self, under_pressure: bool) -> bool {
        let (free, known) = (self.free(under_pressure).min(FIELD << self.shift), self.window());
        !self.finished && free >= known + self.step() && free >= 2 * known
    }

    /// Records that a segment carried an acknowledgement.
    pub(super) fn note_acknowledged(&mut self) {
        self.acknowledged = self.nxt;
        self.unacknowledged = 0;
        self.duplicates = self.duplicates.saturating_sub(1);
        self.due = if self.duplicates > 0 { AckDue::Now } else { AckDue::No };
        self.out_of_order.reported();
    }

    /// Makes a delayed acknowledgement due whose time has come.
    pub(super) fn pass_time(&mut self, now: Instant) {
        if let AckDue::At(at) = self.due
            && at <= now
        {
            self.due = AckDue::Now;
        }
    }

    /// Demands an acknowledgement at once.
    pub(super) fn acknowledge_now(&mut self) {
        self.due = AckDue::Now;
    }

    /// Takes data of a segment that lies at least partly in the window. `counts`: the peer counts
    /// duplicate acknowledgements.
    pub(super) fn take(
        &mut self,
        (now, delay): (Instant, Duration),
        pool: &mut Pool,
        counters: &mut Counters,
        (mut start, mut data): (Seq, &[u8]),
        counts: bool,
    ) {
        let end = start + data.len() as u32;
        if start.before(self.nxt) {
            let old = self.nxt.since(start).min(data.len() as u32);
            self.out_of_order.note_duplicate((start, start + old));
            counters.tcp_duplicate_bytes += u64::from(old);
            data = &data[old as usize..];
            start = start + old;
            self.acknowledge_now();
        }
        if end.after(self.edge) {
            let fits = if start.before(self.edge) { self.edge.since(start) as usize } else { 0 };
            counters.tcp_excess_bytes += data.len().saturating_sub(fits) as u64;
            data = &data[..data.len().min(fits)];
            self.acknowledge_now();
        }
        if data.is_empty() {
            return;
        }
        // Data ahead of a gap, and a connection that holds much, may not take the last memory. Data
        // in order takes that of data ahead of a gap (RFC 2018, 8, allows both).
        let offset = start.since(self.nxt) as usize;
        let takes_much = offset > 0 || self.buffer.len() >= BYTES_UNDER_PRESSURE;
        if takes_much && !pool.is_roomy() {
            counters.tcp_buffer_limit += 1;
            self.acknowledge_now();
            return;
        }
        if offset == 0 && !pool.has_room() && !self.out_of_order.is_empty() {
            self.buffer.drop_ahead(pool);
            self.out_of_order.clear();
        }
        self.segment = self.segment.max((data.len() as u32).min(self.full));
        let placed = self.buffer.place(pool, offset, data);
        if placed < data.len() {
            counters.tcp_buffer_limit += 1;
            self.acknowledge_now();
        }
        let end = start + placed as u32;
        if offset > 0 {
            counters.tcp_out_of_order += 1;
            if placed > 0 && !self.out_of_order.insert((start, end)) {
                counters.tcp_buffer_limit += 1;
            }
            self.duplicates = if counts { self.duplicates.saturating_add(1) } else { 1 };
            self.acknowledge_now();
            return;
        }
        let was_gap = !self.out_of_order.is_empty();
        let to = self.out_of_order.advance(end);
        let count = to.since(self.nxt);
        self.buffer.extend(count as usize);
        self.nxt = to;
        // An acknowledgement of the new number is no duplicate.
        self.duplicates = 0;
        self.unacknowledged += count;
        // More than one full segment is acknowledged immediately, and so is data that fills a gap.
        if was_gap || self.unacknowledged > self.segment {
            self.acknowledge_now();
        } else if self.due == AckDue::No {
            self.due = AckDue::At(now + delay);
        }
    }

    /// Takes a FIN at this number.
    pub(super) fn take_finish(&mut self, at: Seq, counters: &mut Counters) {
        // The FIN is in the window, or next after a window that is closed.
        let fits = at == self.nxt || at.after(self.nxt) && at.before(self.edge);
        if !self.finished && fits {
            self.finish_at = Some(at);
        } else if at.after(self.nxt) {
            counters.tcp_excess_bytes += 1;
        }
        self.acknowledge_now();
        self.take_waiting_finish();
    }

    /// Takes a FIN that arrived before, if it is next now.
    pub(super) fn take_waiting_finish(&mut self) {
        if self.finished || self.finish_at != Some(self.nxt) {
            return;
        }
        self.finished = true;
        self.nxt = self.nxt + 1;
        self.edge = self.edge.max(self.nxt);
        self.acknowledge_now();
    }

    /// Reads data. `keep`: copies without taking.
    pub(super) fn read(&mut self, pool: &mut Pool, to: &mut [u8], keep: bool) -> usize {
        let ahead = !self.out_of_order.is_empty();
        let len = self.buffer.read(pool, to, keep, ahead);
        if !keep {
            self.read = self.read.saturating_add(len as u32);
            let read_to = self.nxt - self.buffer.len() as u32;
            self.urgent = self.urgent.filter(|end| end.after(read_to));
        }
        len
    }

    /// Discards everything that could be read. Returns the number of bytes.
    pub(super) fn discard(&mut self, pool: &mut Pool) -> usize {
        let len = self.buffer.len();
        self.buffer.discard(pool, len, !self.out_of_order.is_empty());
        len
    }

    /// Lets the window grow if the application reads at least half of it per round trip. The new
    /// window is twice the bytes read, plus four times their growth since the round trip before,
    /// and at most four times the bytes read: in slow start the peer sends twice as much in the
    /// next round trip, and the window must stay ahead.
    ///
    /// On a path shorter than [`LEAST_ROUND`] nearly all of the window waits in this host's queues,
    /// so it ends at [`TcpConfig::short_path_bytes`] unless the path itself holds more.
    ///
    /// `least`: the least recent round trip time, zero if unknown; `roomy`: the pool may grow.
    pub(super) fn tune(&mut self, now: Instant, least: Duration, roomy: bool) {
        let round_trip = least.max(LEAST_ROUND);
        let passed = now.since(self.round);
        if passed < round_trip {
            return;
        }
        let read = std::mem::take(&mut self.read);
        let before = std::mem::replace(&mut self.read_before, read);
        self.round = now;
        // Reads over many round trips tell nothing about one.
        if passed > 4 * round_trip {
            return;
        }
        if roomy && read >= self.limit / 2 {
            let growth = read.saturating_sub(before).min(read / 2);
            let wanted = read.saturating_mul(2).saturating_add(growth.saturating_mul(4));
            let on_path = u128::from(wanted) * least.as_nanos() / passed.as_nanos().max(1);
            let is_short = least < LEAST_ROUND;
            let most = if is_short { self.short_path.max(on_path as u32) } else { u32::MAX };
            self.limit = wanted.min(most).max(self.limit).min(self.most);
        }
    }

    /// Gives all memory back.
    pub(super) fn clear(&mut self, pool: &mut Pool) {
        self.buffer.clear(pool);
        self.out_of_order.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_follow_what_the_path_holds() {
        let config = TcpConfig::default();
        let short = config.short_path_bytes as u32;
        // The round trip in microseconds, and the bytes read per microsecond.
        for (least, rate) in [(50, 4000), (900, 4000), (20_000, 100)] {
            let mut receiving = Receiving::new(Seq(0), &config, 9, 1460);
            let step = least.max(1000);
            for round in 1..40 {
                receiving.read = receiving.limit.min(rate * step);
                let now = Instant::from_micros(u64::from(round * step));
                receiving.tune(now, Duration::from_micros(least.into()), true);
            }
            let path = least * rate;
            let expected = (2 * path).max(short)..=(4 * path).max(short);
            assert!(expected.contains(&receiving.limit), "{least} us: {}", receiving.limit);
        }
    }
}
