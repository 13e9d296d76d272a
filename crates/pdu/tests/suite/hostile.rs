//! Fragments that no honest peer sends. The receiver drops and counts each, and stays within its
//! limits of memory and time.

use std::time::{Duration, Instant};
use towpath_client::MacAddr;

use crate::support::{ALICE, BOB, cut, frame, random_bytes, seeded};
use towpath_pdu::{
    Accepted, Dropped, Fragment, Limits, MAX_PDU_BYTES, Malformed, OVERHEAD_BYTES, Reassembler,
};

const FRAGMENT: Fragment = Fragment {
    destination: MacAddr::new(BOB),
    source: MacAddr::new(ALICE),
    channel: 1,
    id: 1,
    total: 3000,
    offset: 0,
    len: 1000,
    crc: 77,
};

struct Bench {
    reassembler: Reassembler,
    now: Instant,
}

impl Bench {
    fn new(limits: Limits) -> Bench {
        Bench { reassembler: Reassembler::new(limits), now: Instant::now() }
    }

    /// Passes the fragment to the receiver, filled with one repeated byte. Returns `Ok(true)` if it
    /// completed a PDU.
    fn give(&mut self, fragment: Fragment, byte: u8) -> Result<bool, Dropped> {
        self.give_buffer(&frame(&fragment, &vec![byte; fragment.len as usize]))
    }

    fn give_buffer(&mut self, frame: &[u8]) -> Result<bool, Dropped> {
        let accepted = self.reassembler.accept(self.now, std::iter::once(frame));
        let accepted = accepted.map(|one| !matches!(one, Accepted::Waits));
        let counters = self.reassembler.counters();
        assert!(counters.adds_up(self.reassembler.waiting()), "{counters:?}");
        accepted
    }
}

#[test]
fn malformed_fragments_are_counted_and_hold_nothing() {
    let mut bench = Bench::new(Limits::default());
    let good = frame(&FRAGMENT, &[0; 1000]);
    for len in 0..OVERHEAD_BYTES {
        assert_eq!(bench.give_buffer(&good[..len]), Err(Malformed::Short.into()));
    }
    for len in OVERHEAD_BYTES..good.len() {
        assert_eq!(bench.give_buffer(&good[..len]), Err(Malformed::Truncated.into()));
    }
    for (total, offset, len) in [(3000, 2001, 1000), (3000, 0, 0), (0, 0, 1), (u32::MAX, 0, 1)] {
        let bad = Fragment { total, offset, len, ..FRAGMENT };
        assert_eq!(bench.give(bad, 0), Err(Malformed::Lengths.into()));
    }
    assert_eq!(bench.reassembler.counters().malformed, good.len() as u64 + 4);
    assert_eq!((bench.reassembler.waiting(), bench.reassembler.held_bytes()), (0, 0));
}

#[test]
fn an_overlap_gives_the_pdu_up_and_a_copy_does_not() {
    let mut bench = Bench::new(Limits::default());
    let at = |id, offset, len| Fragment { id, offset, len, ..FRAGMENT };
    // The same fragment, and parts of it.
    assert_eq!(bench.give(at(1, 1000, 1000), 5), Ok(false));
    for (offset, len) in [(1000, 1000), (1200, 300), (1000, 1), (1999, 1)] {
        assert_eq!(bench.give(at(1, offset, len), 5), Err(Dropped::Duplicate));
    }
    // Other bytes at the same offset: the receiver cannot know which are right.
    assert_eq!(bench.give(at(1, 1999, 1), 6), Err(Dropped::Conflict));
    assert_eq!(bench.give(at(1, 0, 1000), 5), Err(Dropped::Late));
    // Overlaps of its first byte, of its last byte, on both sides, and from before to its end.
    for (id, offset, len) in [(2, 1, 1000), (3, 1999, 1000), (4, 900, 1200), (5, 0, 2000)] {
        assert_eq!(bench.give(at(id, 1000, 1000), 5), Ok(false));
        assert_eq!(bench.give(at(id, offset, len), 5), Err(Dropped::Conflict), "{offset}+{len}");
        assert_eq!(bench.give(at(id, 0, 1000), 5), Err(Dropped::Late));
    }
    let counters = bench.reassembler.counters();
    assert_eq!((counters.conflicts, counters.duplicates, counters.late), (5, 4, 5));
    assert_eq!(bench.reassembler.waiting(), 0);
}

#[test]
fn a_number_used_for_another_pdu() {
    let mut bench = Bench::new(Limits::default());
    // Another length, then another CRC, in a later fragment: the receiver can trust neither.
    for other in [Fragment { total: 4000, ..FRAGMENT }, Fragment { crc: 78, ..FRAGMENT }] {
        let next = Fragment { id: other.total + other.crc, ..other };
        assert_eq!(bench.give(Fragment { id: next.id, ..FRAGMENT }, 0), Ok(false));
        assert_eq!(bench.give(Fragment { offset: 1000, ..next }, 0), Err(Dropped::Conflict));
        assert_eq!(bench.reassembler.waiting(), 0);
    }
    // A whole PDU with the number of an incomplete one.
    let whole = Fragment { total: 5, len: 5, crc: crc32c::crc32c(&[9; 5]), ..FRAGMENT };
    assert_eq!(bench.give(FRAGMENT, 0), Ok(false));
    assert_eq!(bench.give(whole, 9), Err(Dropped::Conflict));
    // After its end, another PDU may have the number.
    assert_eq!(bench.give(whole, 9), Ok(true));
    assert_eq!(bench.give(whole, 9), Err(Dropped::Late));
    let another = Fragment { crc: crc32c::crc32c(&[8; 5]), ..whole };
    assert_eq!(bench.give(another, 8), Ok(true));
    // After the time, the same number means another PDU, or that the sender restarted.
    bench.now += Limits::default().time;
    assert_eq!(bench.give(whole, 9), Ok(true));
    // PDUs of other sources and channels stay apart.
    assert_eq!(bench.give(Fragment { source: [4; 6].into(), ..whole }, 9), Ok(true));
    assert_eq!(bench.give(Fragment { channel: 2, ..whole }, 9), Ok(true));
}

#[test]
fn a_wrong_crc_is_never_delivered() {
    let mut bench = Bench::new(Limits::default());
    for step in 0..2 {
        assert_eq!(bench.give(Fragment { offset: step * 1000, ..FRAGMENT }, 0), Ok(false));
    }
    assert_eq!(bench.give(Fragment { offset: 2000, ..FRAGMENT }, 0), Err(Dropped::Damaged));
    let whole = Fragment { id: 9, total: 1000, ..FRAGMENT };
    assert_eq!(bench.give(whole, 0), Err(Dropped::Damaged));
    let counters = bench.reassembler.counters();
    assert_eq!((counters.damaged, counters.damaged_in_place, counters.delivered()), (1, 1, 0));
    // Nor is an empty PDU with a wrong CRC.
    let empty = Fragment { id: 10, total: 0, len: 0, ..FRAGMENT };
    assert_eq!(bench.give(empty, 0), Err(Dropped::Damaged));
    assert_eq!(bench.give(Fragment { crc: 0, ..empty }, 0), Ok(true));
}

#[test]
fn the_oldest_partial_pdu_is_evicted() {
    let limits = Limits { partials: 8, partials_of_source: 3, ..Limits::default() };
    let mut bench = Bench::new(limits);
    let of = |source: u8, id| Fragment { source: [source; 6].into(), id, ..FRAGMENT };
    // One source alone cannot have more than its share.
    for id in 0..5 {
        assert_eq!(bench.give(of(2, id), 0), Ok(false));
    }
    assert_eq!(bench.reassembler.waiting(), 3);
    assert_eq!(bench.reassembler.counters().gave_way_of_source, 2);
    // The last three are still there. The first two count as finished: their remaining fragments
    // begin nothing and evict nothing.
    let rest = |id| Fragment { offset: 1000, ..of(2, id) };
    for id in 0..2 {
        assert_eq!(bench.give(rest(id), 0), Err(Dropped::Late));
        assert_eq!(bench.give(of(2, id), 0), Err(Dropped::Late));
    }
    for id in 2..5 {
        assert_eq!(bench.give(of(2, id), 0), Err(Dropped::Duplicate));
    }
    assert_eq!(bench.reassembler.waiting(), 3);
    for source in [4, 6, 8, 10] {
        for id in 0..2 {
            assert_eq!(bench.give(of(source, id), 0), Ok(false));
            assert!(bench.reassembler.waiting() <= 8);
        }
    }
    assert_eq!(bench.reassembler.counters().gave_way, 3);
}

/// Sends more PDUs at a time than the receiver keeps, a fragment of each in turn. The receiver
/// still reassembles as many as it has room for.
#[test]
fn fragments_of_evicted_pdus_evict_no_others() {
    let enough = Limits { partials: 100, partials_of_source: 100, ..Limits::default() };
    let by_source = Limits { partials_of_source: 4, ..enough };
    let by_count = Limits { partials: 4, ..enough };
    let by_bytes = Limits { bytes: 4 * MAX_PDU_BYTES, ..enough };
    for (limits, name) in [(by_source, "source"), (by_count, "count"), (by_bytes, "bytes")] {
        for sources in [1, 13] {
            let mut bench = Bench::new(limits);
            let pdu = vec![7; 40_000];
            let all: Vec<_> = (0..13)
                .map(|id| cut([2, 0, 0, 0, 1, (id % sources) as u8], 1, id, &pdu, 1458))
                .collect();
            let mut whole = 0;
            for turn in 0..all[0].len() {
                for frames in &all {
                    match bench.give_buffer(&frames[turn]) {
                        Ok(delivered) => whole += u32::from(delivered),
                        Err(dropped) => assert_eq!(dropped, Dropped::Late),
                    }
                }
            }
            let counters = bench.reassembler.counters();
            let expected = if name == "source" && sources > 1 { 13 } else { 4 };
            assert_eq!(whole, expected, "by {name}, of {sources}: {counters:?}");
            let gave_way = match name {
                "source" => counters.gave_way_of_source,
                "count" => counters.gave_way,
                _ => counters.gave_way_for_bytes,
            };
            assert_eq!(gave_way, u64::from(13 - expected));
            assert_eq!((counters.started, bench.reassembler.waiting()), (13, 0));
        }
    }
}

#[test]
fn memory_is_bounded() {
    let limits = Limits {
        partials: 100,
        partials_of_source: 100,
        bytes: 3 * MAX_PDU_BYTES + 5000,
        ..Limits::default()
    };
    let mut bench = Bench::new(limits);
    let total = MAX_PDU_BYTES as u32;
    // One byte each, for which the receiver reserves 64 KiB.
    for id in 0..1000 {
        assert_eq!(bench.give(Fragment { id, total, len: 1, ..FRAGMENT }, 0), Ok(false));
        assert!(bench.reassembler.held_bytes() <= limits.bytes);
        assert!(bench.reassembler.waiting() <= 3);
    }
    assert_eq!(bench.reassembler.counters().gave_way_for_bytes, 997);
    // All sizes, in any order.
    let mut random = seeded(7);
    for id in 1000..20_000 {
        let total = 2 + random.u32(..MAX_PDU_BYTES as u32 - 1);
        assert_eq!(bench.give(Fragment { id, total, len: 1, ..FRAGMENT }, 0), Ok(false));
        assert!(bench.reassembler.held_bytes() <= limits.bytes);
    }
    // An honest PDU still comes through.
    let pdu = random_bytes(&mut random, MAX_PDU_BYTES);
    let mut came = 0;
    for one in cut([8; 6], 3, 3, &pdu, 1458) {
        came += u32::from(bench.give_buffer(&one).unwrap());
    }
    assert_eq!(came, 1);
    // A receiver of short PDUs refuses a long one, and raises a limit that is too small for any
    // PDU.
    let mut bench = Bench::new(Limits { pdu_bytes: 2999, ..Limits::default() });
    assert_eq!(bench.give(FRAGMENT, 0), Err(Dropped::TooLong));
    let nothing = Limits {
        partials: 0,
        partials_of_source: 0,
        bytes: 0,
        time: Duration::from_secs(1),
        pdu_bytes: usize::MAX,
        finished: 0,
    };
    let mut bench = Bench::new(nothing);
    let mut came = 0;
    for one in cut([8; 6], 3, 3, &pdu, 1458) {
        came += u32::from(bench.give_buffer(&one).unwrap());
    }
    assert_eq!((came, bench.reassembler.held_bytes()), (1, MAX_PDU_BYTES));
    let most = usize::MAX;
    let endless = Limits { partials: most, finished: most, time: Duration::MAX, ..nothing };
    let mut bench = Bench::new(endless);
    assert_eq!(bench.give(FRAGMENT, 0), Ok(false));
    assert_eq!(bench.reassembler.deadline(), None);
}

#[test]
fn holes_are_bounded() {
    let mut bench = Bench::new(Limits::default());
    let total = MAX_PDU_BYTES as u32;
    let hole = |number: u32| Fragment { total, offset: number * 2, len: 1, ..FRAGMENT };
    for number in 0..64 {
        assert_eq!(bench.give(hole(number), 0), Ok(false));
    }
    assert_eq!(bench.give(hole(64), 0), Err(Dropped::Holes));
    assert_eq!(bench.give(hole(65), 0), Err(Dropped::Late));
    assert_eq!(bench.reassembler.waiting(), 0);
}

#[test]
fn time_is_bounded() {
    let limits = Limits { time: Duration::from_millis(100), ..Limits::default() };
    let mut bench = Bench::new(limits);
    let start = bench.now;
    assert_eq!(bench.give(FRAGMENT, 0), Ok(false));
    assert_eq!(bench.reassembler.deadline(), Some(start + limits.time));
    // Later fragments do not extend a PDU's time.
    bench.now += Duration::from_millis(60);
    assert_eq!(bench.give(Fragment { offset: 1000, ..FRAGMENT }, 0), Ok(false));
    assert_eq!(bench.give(Fragment { id: 2, ..FRAGMENT }, 0), Ok(false));
    bench.reassembler.expire(start + Duration::from_millis(99));
    assert_eq!(bench.reassembler.waiting(), 2);
    bench.reassembler.expire(start + Duration::from_millis(100));
    assert_eq!(bench.reassembler.waiting(), 1);
    assert_eq!(bench.reassembler.deadline(), Some(start + Duration::from_millis(160)));
    bench.now = start + Duration::from_millis(101);
    assert_eq!(bench.give(Fragment { offset: 2000, ..FRAGMENT }, 0), Err(Dropped::Late));
    // A clock that steps back harms nothing.
    bench.now = start;
    assert_eq!(bench.give(Fragment { id: 3, ..FRAGMENT }, 0), Ok(false));
    bench.now = start + Duration::from_secs(3600);
    assert!(bench.give(Fragment { id: 4, ..FRAGMENT }, 0).is_ok());
    assert_eq!((bench.reassembler.waiting(), bench.reassembler.counters().expired), (1, 3));
}
