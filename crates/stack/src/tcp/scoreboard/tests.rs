//! The scoreboard against a list of bytes, each with its own state.

use std::time::Duration;

use super::super::sequence::Seq;
use super::{Delivery, Scoreboard};
use crate::Instant;
use crate::random::Random;

const RTT: Duration = Duration::from_micros(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flying,
    Sacked,
    Lost,
}

#[derive(Clone, Copy, Debug)]
struct Byte {
    sent_at: Instant,
    state: State,
    again: bool,
}

/// The bytes in flight, and what was delivered of those sent last.
struct Oracle {
    una: u32,
    bytes: Vec<Byte>,
    newest: Option<(Instant, u32)>,
    round_trip: Duration,
}

impl Oracle {
    fn nxt(&self) -> u32 {
        self.una + self.bytes.len() as u32
    }

    fn count(&self, state: State) -> u32 {
        self.bytes.iter().filter(|byte| byte.state == state).count() as u32
    }

    fn deliver(&mut self, now: Instant, at: u32) -> bool {
        let byte = self.bytes[(at - self.una) as usize];
        if byte.state == State::Sacked {
            return false;
        }
        let sent = (byte.sent_at, at + 1);
        self.round_trip = now.since(byte.sent_at);
        self.newest = Some(self.newest.map_or(sent, |newest| newest.max(sent)));
        true
    }

    /// Marks what was sent before the newest delivered byte, a round trip ago or more.
    fn detect(&mut self, now: Instant) -> bool {
        let Some(newest) = self.newest else { return false };
        let may = self.bytes.iter().any(|byte| byte.again || byte.state == State::Sacked);
        let mut marked = false;
        for (byte, at) in self.bytes.iter_mut().zip(self.una + 1..).filter(|_| may) {
            if byte.state == State::Flying
                && newest > (byte.sent_at, at)
                && byte.sent_at + self.round_trip <= now
            {
                byte.state = State::Lost;
                marked = true;
            }
        }
        marked
    }
}

/// Both, with the same base near the wrap.
struct Both {
    board: Scoreboard,
    oracle: Oracle,
    base: u32,
    now: Instant,
}

impl Both {
    fn seq(&self, at: u32) -> Seq {
        Seq(self.base.wrapping_add(at))
    }

    fn send(&mut self, len: u32) {
        let start = self.oracle.nxt();
        self.board.sent(self.seq(start), self.seq(start + len), self.now, Duration::ZERO);
        let byte = Byte { sent_at: self.now, state: State::Flying, again: false };
        self.oracle.bytes.extend(std::iter::repeat_n(byte, len as usize));
    }

    fn acknowledge(&mut self, to: u32) {
        let mut delivery = Delivery::default();
        self.board.acknowledge(self.now, self.seq(to), Duration::ZERO, &mut delivery);
        let mut bytes = 0;
        for at in self.oracle.una..to {
            bytes += u32::from(self.oracle.deliver(self.now, at));
        }
        self.oracle.bytes.drain(..(to - self.oracle.una) as usize);
        self.oracle.una = to;
        assert_eq!(delivery.bytes, bytes);
    }

    fn select(&mut self, start: u32, end: u32) {
        let (una, nxt) = (self.seq(self.oracle.una), self.seq(self.oracle.nxt()));
        let block = [(self.seq(start), self.seq(end))];
        let mut delivery = Delivery::default();
        self.board.select(self.now, &block, una, nxt, Duration::ZERO, &mut delivery);
        let mut bytes = 0;
        for at in start.max(self.oracle.una)..end {
            bytes += u32::from(self.oracle.deliver(self.now, at));
            self.oracle.bytes[(at - self.oracle.una) as usize].state = State::Sacked;
        }
        assert_eq!((delivery.bytes, delivery.selected), (bytes, bytes > 0));
    }

    /// Sends the first lost data again.
    fn repeat(&mut self, most: u32) {
        let first = self.oracle.bytes.iter().position(|byte| byte.state == State::Lost);
        let Some((start, end)) = self.board.first_lost(most) else {
            assert_eq!(first, None);
            return;
        };
        let first = first.expect("a lost byte");
        assert_eq!(start, self.seq(self.oracle.una + first as u32));
        let len = end.since(start) as usize;
        assert!((1..=most as usize).contains(&len));
        self.board.retransmitted(start, end, self.now, Duration::ZERO);
        for byte in &mut self.oracle.bytes[first..first + len] {
            assert_eq!(byte.state, State::Lost);
            *byte = Byte { sent_at: self.now, state: State::Flying, again: true };
        }
    }

    fn check(&self) {
        assert_eq!(self.board.in_flight(), self.oracle.count(State::Flying));
        assert_eq!(self.board.has_lost(), self.oracle.count(State::Lost) > 0);
        assert_eq!(self.board.has_sacked(), self.oracle.count(State::Sacked) > 0);
        let first = self.oracle.bytes.first().map(|byte| byte.state);
        assert_eq!(self.board.is_first_sacked(), first == Some(State::Sacked));
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut below = move |bound: u32| random.next() as u32 % bound.max(1);
    let oracle = Oracle { una: 0, bytes: Vec::new(), newest: None, round_trip: Duration::ZERO };
    let base = u32::MAX - below(3000);
    let mut both = Both { board: Scoreboard::default(), oracle, base, now: Instant::ZERO };
    for _ in 0..300 {
        both.now = both.now + RTT / 10 * below(8);
        let (una, len) = (both.oracle.una, both.oracle.bytes.len() as u32);
        match below(10) {
            0..4 => both.send(1 + below(50)),
            4 | 5 => both.acknowledge(una + below(len + 1) / (1 + below(6))),
            6 | 7 if len > 0 => {
                let start = una + below(len);
                both.select(start, start + 1 + below(una + len - start));
            }
            8 => both.repeat(1 + below(60)),
            9 if below(8) == 0 => {
                both.board.mark_all_lost();
                let flying = |byte: &&mut Byte| byte.state == State::Flying;
                both.oracle.bytes.iter_mut().filter(flying).for_each(|b| b.state = State::Lost);
            }
            _ => {}
        }
        // Recovering, and nothing reordered: the window of reordering is zero.
        both.board.reordered = false;
        let (marked, _) = both.board.detect(both.now, RTT, RTT, 1000, true);
        assert_eq!(marked, both.oracle.detect(both.now));
        both.check();
    }
}

#[test]
fn records_agree_with_bytes() {
    for seed in 0..500 {
        run(seed);
    }
}

#[test]
fn records_are_bounded_by_reports_of_single_bytes() {
    let mut board = Scoreboard::default();
    let now = Instant::from_millis(1);
    board.sent(Seq(0), Seq(100_000), now, RTT);
    for at in 0..50_000 {
        let block = [(Seq(at * 2 + 1), Seq(at * 2 + 2))];
        let mut delivery = Delivery::default();
        board.select(now + RTT, &block, Seq(0), Seq(100_000), RTT, &mut delivery);
    }
    assert!(board.records.len() <= super::MAX_RECORDS + 1, "{}", board.records.len());
    assert_eq!(board.in_flight() + board.sacked, 100_000);
    board.acknowledge(now + RTT, Seq(100_000), RTT, &mut Delivery::default());
    assert_eq!((board.in_flight(), board.sacked, board.retransmitted), (0, 0, 0));
}

#[test]
fn data_sent_within_a_part_of_the_round_trip_shares_a_record() {
    let mut board = Scoreboard::default();
    let least = Duration::from_millis(32);
    for at in 0..1000u32 {
        let now = Instant::from_micros(u64::from(at) * 100);
        board.sent(Seq(at * 10), Seq(at * 10 + 10), now, least);
    }
    assert!(board.records.len() <= 100, "{}", board.records.len());
}
