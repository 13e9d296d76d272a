//! The record of sent data that is not acknowledged: what the peer reported as received (RFC 2018),
//! and what counts as lost, by time (RACK, RFC 8985).

use std::collections::VecDeque;
use std::time::Duration;

use super::options::Block;
pub(super) use super::record::Delivery;
use super::record::{LOST, RETRANSMITTED, Record, SACKED, is_one_time, later};
use super::sequence::Seq;
use crate::Instant;

/// The maximum number of records. Beyond, the connection sends no new data, and a report of a part
/// of a record is ignored. A record takes 24 bytes.
const MAX_RECORDS: usize = 2048;
/// The number of records that an empty scoreboard keeps room for.
const KEPT: usize = 8;
/// Segments received beyond a gap that show a loss, unless the path reorders (RFC 8985, 6.2).
const DUPLICATES: u32 = 3;
/// The recoveries after which the reordering window narrows again (RFC 8985, 6.2).
const WIDE_RECOVERIES: u8 = 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Scoreboard {
    /// In the order of sequence numbers, without gaps.
    records: VecDeque<Record>,
    /// Bytes of the records in these states.
    sacked: u32,
    lost: u32,
    sacked_records: u32,
    /// The number of retransmitted records.
    retransmitted: u32,
    /// The time and end of the delivered record that was sent last (RACK.xmit_ts, RACK.end_seq).
    newest: Option<(Instant, Seq)>,
    /// The round trip time of the record delivered last (RACK.rtt).
    round_trip: Duration,
    /// The end of the data delivered so far.
    furthest: Option<Seq>,
    /// `true` once data arrived in another order than it was sent.
    reordered: bool,
    /// The reordering window in quarters of the least round trip time.
    quarters: u8,
    /// Recoveries left until the window narrows.
    wide: u8,
}

impl Scoreboard {
    /// Returns the bytes in flight: neither reported as received nor lost (RFC 6675's "pipe").
    pub(super) fn in_flight(&self) -> u32 {
        let all = match (self.records.front(), self.records.back()) {
            (Some(first), Some(last)) => last.end.since(first.start),
            _ => 0,
        };
        all - self.sacked - self.lost
    }

    /// Returns `true` if the peer reported the first data that it has not acknowledged.
    pub(super) fn is_first_sacked(&self) -> bool {
        self.records.front().is_some_and(|record| record.is(SACKED))
    }

    /// Returns `true` if no further data can be recorded.
    pub(super) fn is_full(&self) -> bool {
        self.records.len() >= MAX_RECORDS
    }

    pub(super) fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Returns `true` if the peer reported data beyond a gap.
    pub(super) fn has_sacked(&self) -> bool {
        self.sacked > 0
    }

    /// Records data sent for the first time.
    pub(super) fn sent(&mut self, start: Seq, end: Seq, now: Instant, least: Duration) {
        // Data sent at about one time needs one record, which is split where reports require it.
        if let Some(last) = self.records.back_mut()
            && is_one_time(last.sent_at, now, least)
            && last.state == 0
        {
            last.end = end;
            return;
        }
        self.records.push_back(Record { start, end, sent_at: now, state: 0 });
    }

    /// Records that data was sent again.
    pub(super) fn retransmitted(&mut self, start: Seq, end: Seq, now: Instant, least: Duration) {
        let first = self.index_of(start);
        let index = first + usize::from(self.split(first, start));
        self.split(index, end);
        let Some(record) = self.records.get_mut(index) else { return };
        if record.is(LOST) {
            self.lost -= record.len();
        }
        self.retransmitted += u32::from(!record.is(RETRANSMITTED));
        record.state = (record.state & !LOST) | RETRANSMITTED;
        record.sent_at = now;
        // One record for what was sent again at about one time.
        if let Some(before) = index.checked_sub(1)
            && self.records[before].state == RETRANSMITTED
            && is_one_time(self.records[before].sent_at, now, least)
        {
            self.merge(before);
        }
    }

    /// Merges a record with the next one, of the same state.
    fn merge(&mut self, index: usize) {
        if let Some(next) = self.records.remove(index + 1) {
            self.retransmitted -= u32::from(next.is(RETRANSMITTED));
            self.sacked_records -= u32::from(next.is(SACKED));
            self.records[index].end = next.end;
        }
    }

    /// Returns the first lost data, at most `most` bytes.
    pub(super) fn first_lost(&self, most: u32) -> Option<Block> {
        if self.lost == 0 {
            return None;
        }
        let record = self.records.iter().find(|record| record.is(LOST))?;
        Some((record.start, record.start + record.len().min(most)))
    }

    /// Returns the last sent data that the peer has not reported, at most `most` bytes.
    pub(super) fn last(&self, most: u32) -> Option<Block> {
        let record = self.records.iter().rfind(|record| !record.is(SACKED))?;
        let start = if record.len() > most { record.end - most } else { record.start };
        Some((start, record.end))
    }

    /// Splits a record so that another one begins at `at`, if it lies inside.
    fn split(&mut self, index: usize, at: Seq) -> bool {
        let Some(record) = self.records.get_mut(index) else { return false };
        if !at.after(record.start) || !at.before(record.end) {
            return false;
        }
        let rest = Record { start: at, ..*record };
        record.end = at;
        self.retransmitted += u32::from(rest.is(RETRANSMITTED));
        self.sacked_records += u32::from(rest.is(SACKED));
        self.records.insert(index + 1, rest);
        true
    }

    /// Returns the index of the record that has this number.
    fn index_of(&self, at: Seq) -> usize {
        self.records.partition_point(|record| !record.end.after(at))
    }

    /// Handles the acknowledgement of all data before `to`.
    pub(super) fn acknowledge(
        &mut self,
        now: Instant,
        to: Seq,
        least: Duration,
        delivery: &mut Delivery,
    ) {
        while let Some(&first) = self.records.front() {
            if !first.start.before(to) {
                break;
            }
            if first.end.after(to) {
                self.split(0, to);
            }
            let Some(record) = self.records.pop_front() else { break };
            if record.is(SACKED) {
                self.sacked -= record.len();
                self.sacked_records -= 1;
            } else {
                self.delivered(now, &record, least, delivery);
            }
            if record.is(LOST) {
                self.lost -= record.len();
            }
            self.retransmitted -= u32::from(record.is(RETRANSMITTED));
        }
        if self.records.is_empty() && self.records.capacity() > 4 * KEPT {
            self.records.shrink_to(KEPT);
        }
    }

    /// Handles selective acknowledgements. `una` and `nxt` are the bounds of the data in flight.
    pub(super) fn select(
        &mut self,
        now: Instant,
        blocks: &[Block],
        una: Seq,
        nxt: Seq,
        least: Duration,
        delivery: &mut Delivery,
    ) {
        if let [first, rest @ ..] = blocks {
            let is_within = |block: &Block| !first.0.before(block.0) && !first.1.after(block.1);
            delivery.duplicate = !first.1.after(una) || rest.first().is_some_and(is_within);
        }
        let mut sorted = [(una, una); 4];
        let count = blocks.len().min(sorted.len());
        sorted[..count].copy_from_slice(&blocks[..count]);
        sorted[..count].sort_unstable_by_key(|block| block.0.since(una));
        for &(start, end) in &sorted[..count] {
            let start = start.max(una);
            if start.before(end) && !end.after(nxt) {
                self.select_block(now, (start, end), least, delivery);
            }
        }
    }

    fn select_block(
        &mut self,
        now: Instant,
        (start, end): Block,
        least: Duration,
        delivery: &mut Delivery,
    ) {
        let mut index = self.index_of(start);
        // A report that begins or ends inside a record splits it.
        if self.records.get(index).is_some_and(|record| !record.is(SACKED)) {
            let may = !self.is_full();
            let begins = self.records[index].start == start;
            if !begins && (!may || self.split(index, start)) {
                index += 1;
            }
        }
        while let Some(record) = self.records.get(index).copied() {
            if !record.start.before(end) {
                break;
            }
            if record.is(SACKED) || record.start.before(start) {
                index += 1;
                continue;
            }
            if record.end.after(end) && (self.is_full() || !self.split(index, end)) {
                break;
            }
            let record = self.records[index];
            self.delivered(now, &record, least, delivery);
            delivery.selected = true;
            if record.is(LOST) {
                self.lost -= record.len();
            }
            self.sacked += record.len();
            self.sacked_records += 1;
            self.records[index].state = (record.state & !LOST) | SACKED;
            match index.checked_sub(1) {
                Some(before) if self.records[before].state == self.records[index].state => {
                    self.merge(before);
                }
                _ => index += 1,
            }
        }
    }

    /// Handles the first report of a record (RFC 8985, 6.2, steps 1 to 3).
    fn delivered(
        &mut self,
        now: Instant,
        record: &Record,
        least: Duration,
        delivery: &mut Delivery,
    ) {
        delivery.bytes += record.len();
        let round_trip = now.since(record.sent_at);
        if !record.is(RETRANSMITTED) {
            let sample = delivery.sample.map_or(round_trip, |sample| sample.min(round_trip));
            delivery.sample = Some(sample);
        }
        // A report sooner than the path allows is about the first copy.
        if !record.is(RETRANSMITTED) || round_trip >= least {
            self.round_trip = round_trip;
            let sent = (record.sent_at, record.end);
            if self.newest.is_none_or(|newest| later(sent, newest)) {
                self.newest = Some(sent);
            }
        }
        match self.furthest {
            Some(furthest) if record.end.before(furthest) => {
                self.reordered |= !record.is(RETRANSMITTED);
            }
            _ => self.furthest = Some(record.end),
        }
    }

    /// Widens the reordering window, since the peer received data twice: it was sent again too
    /// early (RFC 8985, 6.2, step 4).
    pub(super) fn widen(&mut self) {
        self.quarters = self.quarters.max(1).saturating_add(1);
        self.wide = WIDE_RECOVERIES;
    }

    /// Narrows the reordering window after a number of recoveries without such a report.
    pub(super) fn recovered(&mut self) {
        self.wide = self.wide.saturating_sub(1);
        if self.wide == 0 {
            self.quarters = 1;
        }
    }

    /// Marks the data as lost that was sent long enough before delivered data (RFC 8985, 6.2,
    /// step 5). `recovering`: the connection is in loss recovery already. Returns whether it marked
    /// any, and when to check again.
    pub(super) fn detect(
        &mut self,
        now: Instant,
        least: Duration,
        smoothed: Duration,
        segment_bytes: u32,
        recovering: bool,
    ) -> (bool, Option<Instant>) {
        let Some(newest) = self.newest.filter(|_| self.sacked > 0 || self.retransmitted > 0) else {
            return (false, None);
        };
        // Many segments can share a record.
        let many = self.sacked_records >= DUPLICATES || self.sacked >= DUPLICATES * segment_bytes;
        // The time by which data may overtake other data.
        let window = if !self.reordered && (recovering || many) {
            Duration::ZERO
        } else {
            (least / 4 * u32::from(self.quarters.max(1))).min(smoothed)
        };
        let (mut marked, mut next) = (false, None::<Instant>);
        for record in &mut self.records {
            if record.is(SACKED | LOST) || !later(newest, (record.sent_at, record.end)) {
                continue;
            }
            let at = record.sent_at + self.round_trip + window;
            if at <= now {
                record.state |= LOST;
                self.lost += record.len();
                marked = true;
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        (marked, next)
    }

    /// Marks all data as lost that the peer has not reported: the retransmission timeout passed.
    pub(super) fn mark_all_lost(&mut self) {
        for record in &mut self.records {
            if !record.is(SACKED | LOST) {
                record.state |= LOST;
                self.lost += record.len();
            }
        }
    }

    /// Marks the first data as lost, at most `most` bytes. Returns `true` unless it was marked.
    pub(super) fn mark_first_lost(&mut self, most: u32) -> bool {
        let Some(&first) = self.records.front() else { return false };
        if first.is(SACKED | LOST) {
            return false;
        }
        self.split(0, first.start + most);
        let first = &mut self.records[0];
        first.state |= LOST;
        self.lost += first.len();
        true
    }

    /// Takes all losses back: they were none.
    pub(super) fn unmark_lost(&mut self) {
        for record in &mut self.records {
            record.state &= !LOST;
        }
        self.lost = 0;
        self.reordered = true;
    }

    /// Forgets the selective acknowledgements. A timeout may mean that the peer dropped what it
    /// reported (RFC 2018, 8).
    pub(super) fn forget_selected(&mut self) {
        for record in &mut self.records {
            if record.is(SACKED) {
                // The next report of it measures no round trip.
                self.retransmitted += u32::from(!record.is(RETRANSMITTED));
                record.state = (record.state & !SACKED) | RETRANSMITTED;
            }
        }
        self.sacked = 0;
        self.sacked_records = 0;
    }

    pub(super) fn clear(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        records.clear();
        records.shrink_to(KEPT);
        *self = Scoreboard { records, ..Scoreboard::default() };
    }
}

#[cfg(test)]
mod tests;
