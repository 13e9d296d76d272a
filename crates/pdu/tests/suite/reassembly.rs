//! Compares the reassembler with a simple model, fragment by fragment, on wires that lose,
//! duplicate, reorder and damage frames.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::{ALICE, BOB, cut, random_bytes, seeded};
use towpath_pdu::{Accepted, Dropped, Fragment, Limits, OVERHEAD_BYTES, Reassembler};

/// The outcome of a fragment.
#[derive(Debug, PartialEq)]
enum Outcome {
    Waits,
    Delivered { channel: u32, id: u32, bytes: Vec<u8> },
    Dropped(Dropped),
}

/// A PDU in the model: each byte, or `None` if it is missing.
struct Known {
    bytes: Vec<Option<u8>>,
    since: Instant,
}

/// The model: without limits, and slow.
struct Model {
    time: Duration,
    known: HashMap<(u32, u32), Known>,
    done: HashMap<(u32, u32), Instant>,
}

impl Model {
    fn accept(&mut self, now: Instant, frame: &[u8]) -> Outcome {
        let time = self.time;
        self.done.retain(|_, since| now - *since < time);
        let late: Vec<_> =
            self.known.iter().filter(|(_, one)| now - one.since >= time).map(|(k, _)| *k).collect();
        for key in late {
            self.known.remove(&key);
            self.done.insert(key, now);
        }
        let fragment = match Fragment::parse(frame.first_chunk().unwrap(), frame.len()) {
            Ok(fragment) => fragment,
            Err(malformed) => return Outcome::Dropped(malformed.into()),
        };
        let key = (fragment.channel, fragment.id);
        let (start, total) = (fragment.offset as usize, fragment.total as usize);
        let part = &frame[OVERHEAD_BYTES..][..fragment.len as usize];
        let delivered = |bytes: Vec<u8>| Outcome::Delivered {
            channel: fragment.channel,
            id: fragment.id,
            bytes,
        };
        if self.done.contains_key(&key) {
            return Outcome::Dropped(Dropped::Late);
        }
        if part.len() == total {
            if crc32c::crc32c(part) != fragment.crc {
                return Outcome::Dropped(Dropped::Damaged);
            }
            self.done.insert(key, now);
            return delivered(part.to_vec());
        }
        let new = || Known { bytes: vec![None; total], since: now };
        let known = self.known.entry(key).or_insert_with(new);
        let there = &mut known.bytes[start..start + part.len()];
        if there.iter().any(Option::is_some) {
            if there.iter().copied().eq(part.iter().map(|byte| Some(*byte))) {
                return Outcome::Dropped(Dropped::Duplicate);
            }
            self.known.remove(&key);
            self.done.insert(key, now);
            return Outcome::Dropped(Dropped::Conflict);
        }
        for (place, byte) in there.iter_mut().zip(part) {
            *place = Some(*byte);
        }
        let Some(bytes) = known.bytes.iter().copied().collect::<Option<Vec<u8>>>() else {
            return Outcome::Waits;
        };
        self.known.remove(&key);
        self.done.insert(key, now);
        if crc32c::crc32c(&bytes) == fragment.crc {
            delivered(bytes)
        } else {
            Outcome::Dropped(Dropped::Damaged)
        }
    }
}

fn accept(reassembler: &mut Reassembler, now: Instant, frame: &[u8], pieces: usize) -> Outcome {
    // In any number of pieces.
    let parts = frame.chunks(frame.len().div_ceil(pieces));
    match reassembler.accept(now, parts.clone()) {
        Ok(Accepted::Waits) => Outcome::Waits,
        Ok(Accepted::InPlace(Fragment { channel, id, len, .. })) => {
            let pieces = towpath_pdu::Pieces::after_headers(parts, len as usize);
            let bytes = pieces.flatten().copied().collect();
            Outcome::Delivered { channel, id, bytes }
        }
        Ok(Accepted::Reassembled(Fragment { channel, id, .. }, bytes)) => {
            Outcome::Delivered { channel, id, bytes: bytes.to_vec() }
        }
        Ok(Accepted::Queued(_)) => unreachable!("a reassembler has no queues"),
        Err(dropped) => Outcome::Dropped(dropped),
    }
}

/// The faults of a wire, in thousandths of its frames.
struct Wire {
    drop: u64,
    double: u64,
    reorder: u64,
    flip: u64,
}

fn run(seed: u64, wire: &Wire) {
    let mut random = seeded(seed);
    let time = Duration::from_millis(200);
    // Limits beyond the amount in flight: other tests cover their effects.
    let limits = Limits {
        partials: 1000,
        partials_of_source: 1000,
        bytes: 64 << 20,
        time,
        finished: 100_000,
        ..Limits::default()
    };
    let mut reassembler = Reassembler::new(limits);
    let mut model = Model { time, known: HashMap::new(), done: HashMap::new() };
    let mut now = Instant::now();
    let mut sent = HashMap::new();
    let mut in_flight: Vec<Vec<u8>> = Vec::new();
    let (mut delivered, mut outcomes) = (0_u64, HashMap::<String, u64>::new());
    for id in 0..1500 {
        let channel = random.u32(..5);
        let len = match random.u64(..4) {
            0 => random.u64(..60),
            1 => random.u64(..1500),
            2 => random.u64(..6000),
            _ => random.u64(..30_000),
        } as usize;
        let pdu = random_bytes(&mut random, len);
        let chunk = 500 + random.usize(..958);
        for frame in cut(ALICE, channel, id, &pdu, chunk) {
            if random.u64(..1000) < wire.drop {
                continue;
            }
            let copies = 1 + u64::from(random.u64(..1000) < wire.double);
            for _ in 0..copies {
                let mut frame = frame.clone();
                if random.u64(..1000) < wire.flip {
                    let bit = random.usize(..frame.len() * 8);
                    frame[bit / 8] ^= 1 << (bit % 8);
                }
                let behind = in_flight.len() as u64;
                let overtakes = random.u64(..1000) < wire.reorder && behind > 0;
                let back = if overtakes { random.u64(..behind.min(60)) + 1 } else { 0 };
                in_flight.insert((behind - back) as usize, frame);
            }
        }
        sent.insert((channel, id), pdu);
        if id % 20 != 19 {
            continue;
        }
        for frame in in_flight.drain(..) {
            now += Duration::from_micros(random.u64(..300));
            let expected = model.accept(now, &frame);
            let pieces = 1 + random.usize(..5);
            let outcome = accept(&mut reassembler, now, &frame, pieces);
            assert!(outcome == expected, "PDU {id}: {outcome:?}, expected {expected:?}");
            if let Outcome::Delivered { channel, id, bytes } = &outcome {
                assert_eq!(sent.remove(&(*channel, *id)).as_ref(), Some(bytes), "once, whole");
                delivered += 1;
            }
            let name = match outcome {
                Outcome::Waits => "waits".into(),
                Outcome::Delivered { .. } => "delivered".into(),
                Outcome::Dropped(dropped) => format!("{dropped:?}"),
            };
            *outcomes.entry(name).or_default() += 1;
            assert!(reassembler.counters().adds_up(reassembler.waiting()));
        }
        assert_eq!(reassembler.waiting(), model.known.len());
    }
    now += time;
    reassembler.expire(now);
    assert_eq!((reassembler.waiting(), reassembler.deadline()), (0, None));
    let counters = reassembler.counters();
    assert!(counters.adds_up(0), "{counters:?}");
    assert_eq!(counters.delivered(), delivered);
    let expect = |what: u64, rate: u64, name: &str| {
        assert_eq!(what > 0, rate > 0, "{name}: {counters:?}, {outcomes:?}");
    };
    expect(counters.expired, wire.drop, "expired");
    expect(counters.duplicates + counters.late, wire.double + wire.flip, "duplicates");
    expect(counters.malformed, wire.flip, "malformed");
    expect(counters.damaged + counters.damaged_in_place, wire.flip, "damaged");
    if wire.drop + wire.flip == 0 {
        assert_eq!(delivered, 1500, "all that was sent");
    }
}

#[test]
fn a_good_wire() {
    run(1, &Wire { drop: 0, double: 0, reorder: 0, flip: 0 });
}

#[test]
fn a_wire_that_reorders_loses_nothing() {
    run(2, &Wire { drop: 0, double: 0, reorder: 500, flip: 0 });
}

#[test]
fn a_wire_that_doubles_delivers_once() {
    run(3, &Wire { drop: 0, double: 500, reorder: 300, flip: 0 });
}

#[test]
fn a_wire_that_loses() {
    run(4, &Wire { drop: 50, double: 0, reorder: 0, flip: 0 });
}

#[test]
fn a_wire_with_all_faults() {
    for seed in 5..9 {
        run(seed, &Wire { drop: 10, double: 30, reorder: 200, flip: 30 });
    }
}

#[test]
fn fragments_of_any_order_and_size_make_the_pdu() {
    let mut random = seeded(10);
    let now = Instant::now();
    for (id, len) in
        [0, 1, 46, 1458, 1459, 2916, 2917, 30_000, 65_535, 65_536].into_iter().enumerate()
    {
        let pdu = random_bytes(&mut random, len);
        for chunk in [1458, 1500, 8958, 65_535] {
            let mut frames = cut(BOB, chunk as u32, id as u32, &pdu, chunk);
            for place in (1..frames.len()).rev() {
                frames.swap(place, random.usize(..place + 1));
            }
            let mut reassembler = Reassembler::new(Limits::default());
            let last = frames.len() - 1;
            for (place, frame) in frames.iter().enumerate() {
                // Padded, as on Ethernet, or by a switch.
                let padding = vec![0xa5; 60_usize.saturating_sub(frame.len()) + place % 3];
                let padded = [&frame[..], &padding].concat();
                let outcome = accept(&mut reassembler, now, &padded, 1 + place % 4);
                match outcome {
                    Outcome::Delivered { bytes, .. } if place == last => assert!(bytes == pdu),
                    Outcome::Waits if place < last => {}
                    other => panic!("{len} in {chunk}: fragment {place} of {last}: {other:?}"),
                }
            }
            let counters = reassembler.counters();
            let copies = if last == 0 { 0 } else { frames.len() as u64 };
            assert_eq!(counters.copied, copies, "one copy per fragment, none in place");
            assert_eq!(counters.copied_bytes, if last == 0 { 0 } else { len as u64 });
        }
    }
}
