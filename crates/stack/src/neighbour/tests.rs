//! The cost of each operation, the order of eviction, and the limits.

use super::*;
use crate::Meta;
use crate::outbox::{FRAME_OVERHEAD, NextHop};

const LIMIT: usize = 1024;

struct Bench {
    neighbours: Neighbours,
    outbox: Outbox,
    counters: Counters,
    outcome: Outcome,
    now: Instant,
}

/// The memory for the frames of one neighbour, and a frame that waits in a buffer of the outbox.
const PENDING_BYTES: usize = 10_000;
const LONG_BYTES: usize = 600;

fn ip(number: usize) -> IpAddr {
    [10, 1, (number >> 8) as u8, number as u8].into()
}

impl Bench {
    fn new(held_limit: usize) -> Bench {
        Bench {
            neighbours: Neighbours::new(LIMIT, PENDING_BYTES, held_limit),
            outbox: Outbox::new(1 << 20),
            counters: Counters::default(),
            outcome: Outcome::default(),
            now: Instant::from_millis(1),
        }
    }

    fn lookup(&mut self, number: usize) -> Lookup {
        let Bench { neighbours, outbox, counters, now, .. } = self;
        neighbours.lookup(*now, ip(number), outbox, counters)
    }

    fn hold(&mut self, number: usize, len: usize) {
        let Bench { neighbours, outbox, counters, .. } = self;
        let to = NextHop::Neighbour(ip(number));
        let mut bytes = outbox.buffer();
        bytes.resize(len, 0);
        let frame = Frame { bytes, meta: Meta::FULL, to };
        neighbours.hold(ip(number), frame, outbox, counters);
    }

    fn learn(&mut self, number: usize) {
        let Bench { neighbours, outbox, outcome, now, .. } = self;
        neighbours.learn(*now, ip(number), [2, 0, 0, 0, 0, 1], true, outbox, outcome);
    }

    fn due(&mut self) -> usize {
        let Bench { neighbours, outbox, counters, outcome, now } = self;
        neighbours.due(*now, outbox, counters, outcome).len()
    }

    /// Returns the number of entries that `work` visits.
    fn visits<T>(&mut self, work: impl FnOnce(&mut Bench) -> T) -> (T, u64) {
        let before = self.neighbours.table.visits;
        let result = work(self);
        (result, self.neighbours.table.visits - before)
    }
}

/// Returns the visits of each operation in a table of `known` neighbours, with requests pending for
/// a third of them.
fn costs(known: usize) -> Vec<(&'static str, u64)> {
    let mut bench = Bench::new(1 << 20);
    for number in 0..known {
        bench.learn(number);
    }
    bench.now = bench.now + REACHABLE + Duration::from_secs(1);
    for number in (0..known).step_by(3) {
        bench.lookup(number);
    }
    while bench.due() > 0 {}
    assert_eq!(bench.neighbours.probing.len(), known.div_ceil(3));
    let id = TcpId { index: 1, generation: 1 };
    let middle = known / 2 / 3 * 3;
    let mut costs = Vec::new();
    let mut cost = |name, work: &mut dyn FnMut(&mut Bench)| {
        let ((), visits) = bench.visits(work);
        costs.push((name, visits));
    };
    cost("a packet to a neighbour", &mut |bench| {
        bench.lookup(middle);
    });
    cost("another to the same", &mut |bench| {
        bench.lookup(middle);
    });
    cost("a poll with nothing due", &mut |bench| {
        assert_eq!((bench.due(), bench.neighbours.poll_at()), (0, Some(bench.now + RETRY)));
    });
    cost("a frame held", &mut |bench| bench.hold(middle, 60));
    cost("a connection that waits", &mut |bench| bench.neighbours.wait(ip(middle), id));
    cost("an answer", &mut |bench| bench.learn(middle));
    cost("an unsolicited answer", &mut |bench| bench.learn(middle));
    cost("a packet to a new neighbour", &mut |bench| {
        bench.lookup(60_000);
    });
    cost("its request", &mut |bench| assert_eq!(bench.due(), 1));
    costs
}

#[test]
fn the_cost_does_not_grow_with_the_table() {
    let (one, full) = (costs(1), costs(LIMIT));
    for ((name, one), (_, full)) in one.into_iter().zip(full) {
        // The entry itself and its neighbours in the order of use, and for a new entry the same of
        // the evicted one.
        assert!(one <= 8 && full <= 8, "{name}: {one} at 1, {full} at {LIMIT}");
    }
}

#[test]
fn the_least_recently_used_neighbour_is_evicted() {
    let mut bench = Bench::new(1 << 20);
    for number in 0..LIMIT {
        bench.learn(number);
    }
    bench.lookup(0);
    for number in 0..LIMIT - 1 {
        bench.lookup(50_000 + number);
    }
    assert_eq!((bench.neighbours.len(), bench.counters.neighbour_limit), (LIMIT, 1023));
    assert!(matches!(bench.lookup(0), Lookup::Station(_)), "the one in use was forgotten");
    assert!(bench.neighbours.table.find(ip(1)).is_none());
    assert_eq!(bench.neighbours.probing.len(), LIMIT - 1);
}

#[test]
fn held_packets_are_bounded_in_total() {
    let mut bench = Bench::new(0);
    let cost = Outbox::cost(LONG_BYTES);
    let most = LEAST_HELD_BYTES / cost;
    for number in 0..LIMIT {
        bench.lookup(number);
        bench.hold(number, LONG_BYTES);
    }
    assert_eq!(bench.neighbours.held_bytes, most * cost);
    assert_eq!(bench.counters.neighbour_dropped, (LIMIT - most) as u64);
    // An answer releases a neighbour's frames and makes room for those of another.
    bench.learn(0);
    assert_eq!(bench.outbox.len(), 1);
    bench.hold(LIMIT - 1, LONG_BYTES);
    assert_eq!(bench.neighbours.held_bytes, most * cost);
    // Each poll gives up a bounded number of the other neighbours.
    let mut polls = 0;
    while bench.neighbours.poll_at().is_some() {
        bench.now = bench.now.max(bench.neighbours.poll_at().unwrap());
        assert!(bench.due() <= BUDGET);
        polls += 1;
    }
    assert_eq!(bench.counters.neighbour_failures, LIMIT as u64 - 1);
    assert_eq!((bench.neighbours.held_bytes, bench.neighbours.len()), (0, 1));
    assert!(polls >= 4 * LIMIT / BUDGET, "{polls}");
}

/// Short frames wait in allocations of their exact lengths, so many more of them fit; the oldest one makes room.
#[test]
fn the_memory_of_one_neighbours_frames_is_bounded() {
    for len in [60, SHORT_BYTES, LONG_BYTES] {
        let mut bench = Bench::new(1 << 20);
        let cost = if len > SHORT_BYTES { Outbox::cost(len) } else { FRAME_OVERHEAD + len };
        let most = PENDING_BYTES / cost;
        bench.lookup(0);
        for _ in 0..100 {
            bench.hold(0, len);
        }
        assert_eq!(bench.neighbours.held_bytes, most * cost, "{len}");
        assert_eq!(bench.counters.neighbour_dropped, 100 - most as u64, "{len}");
        bench.learn(0);
        assert_eq!((bench.outbox.len(), bench.neighbours.held_bytes), (most, 0), "{len}");
    }
}
