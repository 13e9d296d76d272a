//! A peer that writes any value at any time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::Violation;
use crate::descriptor::{Descriptor, EXPEDITED, HEADROOM_BYTES, MAX_CHAIN, META, MORE, TOGETHER};
use crate::events::{self, Acknowledger, EventShape, Marker};
use crate::test_memory::{Memory, Pair};
use crate::word::LINE_WORDS;

fn is_inside(descriptor: &Descriptor, pair: &Pair) -> bool {
    descriptor.buffer < pair.pool.buffers()
        && descriptor.len > 0
        && descriptor.start >= HEADROOM_BYTES
        && descriptor.start + descriptor.len <= pair.pool.frame_bytes()
}

/// The flip test: a thread flips descriptor, index and provide words between a good and a bad value
/// all the time. Each packet that the server takes is inside of the pool, and stays so, because the
/// server has a private copy. The test requires that the server saw both good and bad values.
#[test]
fn checked_descriptors_are_the_used_ones() {
    let pair = Pair::new(8, 8);
    let good = Descriptor { buffer: 1, start: HEADROOM_BYTES, len: 64, endpoint: 0, flags: 0 };
    let bad = Descriptor { buffer: 1, start: HEADROOM_BYTES, len: 0xf_ffff, endpoint: 0, flags: 0 };
    let stop = AtomicBool::new(false);
    let (mut taken, mut plain, mut refused) = (0u64, 0usize, 0u64);
    std::thread::scope(|scope| {
        let peer = scope.spawn(|| {
            let descriptors = 2 * LINE_WORDS;
            let provided = descriptors + 16;
            let mut round = 0u64;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let one = if round.is_multiple_of(2) { good } else { bad };
                for slot in 0..8 {
                    let words = one.to_words();
                    pair.application
                        .word(descriptors + 2 * slot)
                        .store(words[0], Ordering::Relaxed);
                    pair.application
                        .word(descriptors + 2 * slot + 1)
                        .store(words[1], Ordering::Relaxed);
                    let buffer =
                        if round.is_multiple_of(2) { slot as u64 } else { u64::MAX - slot as u64 };
                    pair.application.word(provided + slot).store(buffer, Ordering::Relaxed);
                }
                let index = if round.is_multiple_of(3) { 1u64 << 40 } else { 1 };
                pair.application.word(0).store(index, Ordering::Release);
                pair.application.word(LINE_WORDS).store(index, Ordering::Release);
            }
        });
        let until = Instant::now() + Duration::from_millis(700);
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        while Instant::now() < until {
            // Each round is a session of its own, since a violation ends a session.
            let mut server = pair.server();
            match server
                .transmit
                .observe()
                .and_then(|_| server.transmit.take(&mut server.transmit_ledger, &mut packet))
            {
                Ok(Some((count, _))) => {
                    taken += 1;
                    for descriptor in &packet[..count] {
                        assert!(is_inside(descriptor, &pair), "{descriptor:?}");
                    }
                }
                Ok(None) => {}
                Err(_) => refused += 1,
            }
            let mut server = pair.server();
            if server.transmit.observe().is_ok() {
                let ledger = &mut server.transmit_ledger;
                let (_, count) = server.transmit.take_plain(ledger, &mut packet, i64::MAX);
                plain += count;
                for descriptor in &packet[..count] {
                    assert!(is_inside(descriptor, &pair), "{descriptor:?}");
                }
            }
            match server.receive.observe(&mut server.receive_ledger) {
                Ok(available) => {
                    for ahead in 0..available {
                        assert!(server.receive.buffer(ahead) < pair.pool.buffers());
                    }
                }
                Err(_) => refused += 1,
            }
        }
        stop.store(true, Ordering::Relaxed);
        // ThreadSanitizer sees the end of a thread that is joined, not that of a scope.
        peer.join().unwrap();
    });
    assert!(taken > 1000 && refused > 1000, "taken {taken}, refused {refused}: too few");
    assert!(plain > 1000, "{plain} taken as plain: too few");
}

/// Random values in random words: the server returns only packets inside of the pool or a
/// violation, and its work is bounded.
#[test]
fn random_words_give_a_violation_or_stay_in_the_pool() {
    let seed = 0x7041_7a55;
    println!("seed {seed:#x}");
    let mut random = Rng::with_seed(seed);
    let mut seen = std::collections::BTreeSet::new();
    let mut packets = 0;
    for _ in 0..30_000 {
        let pair = Pair::new(16, 16);
        let (mut producer, mut consumer) = pair.application();
        // Most words are correct, so that the test reaches the later checks.
        for buffer in 0..8 {
            let flags = u16::from(buffer % 3 == 0);
            let one = Descriptor { buffer, start: HEADROOM_BYTES, len: 60, endpoint: 0, flags };
            producer.push(&[one]);
            consumer.provide(buffer);
        }
        producer.publish();
        consumer.publish();
        for _ in 0..random.u64(..4) {
            let word = random.usize(..pair.application.len());
            let value = match random.u64(..4) {
                0 => random.u64(..),
                1 => random.u64(..32),
                2 => pair.application.word(word).load(Ordering::Relaxed) ^ 1 << random.u64(..64),
                _ => pair
                    .application
                    .word(random.usize(..pair.application.len()))
                    .load(Ordering::Relaxed),
            };
            pair.application.word(word).store(value, Ordering::Relaxed);
        }
        let mut server = pair.server();
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        let mut work = 0;
        let outcome = (|| {
            server.transmit.observe()?;
            while let Some((count, first)) =
                server.transmit.take(&mut server.transmit_ledger, &mut packet)?
            {
                for descriptor in &packet[..count] {
                    assert!(is_inside(descriptor, &pair));
                }
                work += count;
                packets += 1;
                server.transmit.complete(&mut server.transmit_ledger, first, count as u32);
            }
            let available = server.receive.observe(&mut server.receive_ledger)?;
            for ahead in 0..available {
                assert!(server.receive.buffer(ahead) < 16);
            }
            Ok::<(), Violation>(())
        })();
        assert!(work <= 16, "more work than slots");
        if let Err(violation) = outcome {
            assert_eq!(Violation::from_number(violation as u32), Some(violation));
            seen.insert(violation as u32);
        }
    }
    let expected = [
        Violation::Index,
        Violation::Buffer,
        Violation::Range,
        Violation::Ownership,
        Violation::Chain,
        Violation::Flags,
    ];
    for violation in expected {
        assert!(seen.contains(&(violation as u32)), "no {violation:?} was provoked");
    }
    assert!(packets > 10_000);
}

/// The server cannot fill a buffer that it could not take, even if the caller continues after the
/// violation.
#[test]
fn only_buffers_that_were_taken_can_be_filled() {
    for bad in [2, 8, u64::MAX] {
        let pair = Pair::new(8, 8);
        let (_, mut application) = pair.application();
        let mut server = pair.server();
        for buffer in 0..8 {
            application.provide(buffer);
        }
        application.publish();
        let provided = 2 * LINE_WORDS + 16;
        // The sixth number is no buffer's, or that of a buffer which the application provided
        // before.
        pair.application.word(provided + 5).store(bad, Ordering::Relaxed);
        for _ in 0..3 {
            assert!(server.receive.observe(&mut server.receive_ledger).is_err());
            assert_eq!(server.receive.available(), 5);
            assert_eq!(server.receive_ledger.held(), 5);
        }
        for buffer in 0..5 {
            let start = HEADROOM_BYTES;
            let descriptor = Descriptor { buffer, start, len: 64, ..Descriptor::default() };
            assert_eq!(server.receive.buffer(0), buffer);
            server.receive.push(descriptor);
        }
        assert_eq!(server.receive.available(), 0);
        assert_eq!(server.receive_ledger.held(), 5, "the server holds them until it publishes");
        assert_eq!(server.receive.publish(&mut server.receive_ledger), 5);
        assert_eq!(server.receive_ledger.held(), 0);
    }
}

/// The application cannot reuse the slots of filled buffers before the server publishes the
/// buffers: the ledger still reads these slots.
#[test]
fn filled_buffers_keep_their_slots_until_they_are_published() {
    let pair = Pair::new(8, 16);
    let (_, mut application) = pair.application();
    let mut server = pair.server();
    (0..8).for_each(|buffer| assert!(application.provide(buffer)));
    application.publish();
    assert_eq!(server.receive.observe(&mut server.receive_ledger), Ok(8));
    for buffer in 0..4 {
        server.receive.push(Descriptor {
            buffer,
            start: HEADROOM_BYTES,
            len: 64,
            ..Descriptor::default()
        });
    }
    let provided = 2 * LINE_WORDS + 16;
    for slot in 0..4 {
        pair.application.word(provided + slot).store(8 + slot as u64, Ordering::Relaxed);
    }
    pair.application.word(LINE_WORDS).store(12, Ordering::Release);
    assert_eq!(server.receive.observe(&mut server.receive_ledger), Err(Violation::Index));
    assert_eq!(server.receive.publish(&mut server.receive_ledger), 4);
    let held: Vec<_> = (0..16).filter(|buffer| server.receive_ledger.holds(*buffer)).collect();
    assert_eq!(held, [4, 5, 6, 7]);
    // Once they are published, the same index is correct.
    assert_eq!(server.receive.observe(&mut server.receive_ledger), Ok(8));
}

/// A chain longer than allowed, and a chain without a published end, are violations.
#[test]
fn broken_chains() {
    for (count, flags) in [(MAX_CHAIN + 1, 1), (3, 1)] {
        let pair = Pair::new(64, 64);
        let descriptors = 2 * LINE_WORDS;
        for slot in 0..count {
            let one = Descriptor {
                buffer: slot as u32,
                start: HEADROOM_BYTES,
                len: 60,
                endpoint: 0,
                flags,
            };
            let words = one.to_words();
            pair.application.word(descriptors + 2 * slot).store(words[0], Ordering::Relaxed);
            pair.application.word(descriptors + 2 * slot + 1).store(words[1], Ordering::Relaxed);
        }
        pair.application.word(0).store(count as u64, Ordering::Release);
        let mut server = pair.server();
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        server.transmit.observe().unwrap();
        let outcome = server.transmit.take(&mut server.transmit_ledger, &mut packet);
        assert_eq!(outcome, Err(Violation::Chain));
    }
}

/// Plain packets are taken up to the first of another kind, or that fails a check, which stays in
/// the queue.
#[test]
fn plain_packets_are_taken_up_to_the_first_other_one() {
    let plain =
        |buffer| Descriptor { buffer, start: HEADROOM_BYTES, len: 60, endpoint: 3, flags: 0 };
    let others = [
        (Descriptor { flags: TOGETHER, ..plain(2) }, None),
        (Descriptor { flags: EXPEDITED, ..plain(2) }, None),
        (Descriptor { flags: META, ..plain(2) }, None),
        (plain(8), Some(Violation::Buffer)),
        (plain(1), Some(Violation::Ownership)),
        (Descriptor { start: 0, ..plain(2) }, Some(Violation::Range)),
    ];
    for (other, violation) in others {
        let pair = Pair::new(8, 8);
        let descriptors = 2 * LINE_WORDS;
        for (slot, one) in [plain(0), plain(1), other, plain(3)].into_iter().enumerate() {
            for (word, value) in one.to_words().into_iter().enumerate() {
                let at = descriptors + 2 * slot + word;
                pair.application.word(at).store(value, Ordering::Relaxed);
            }
        }
        pair.application.word(0).store(4, Ordering::Release);
        let mut server = pair.server();
        server.transmit.observe().unwrap();
        let mut packets = [Descriptor::default(); MAX_CHAIN];
        let ledger = &mut server.transmit_ledger;
        assert_eq!(server.transmit.take_plain(ledger, &mut packets, i64::MAX), (0, 2));
        assert_eq!(packets[..2], [plain(0), plain(1)]);
        assert_eq!(server.transmit.take_plain(ledger, &mut packets, i64::MAX), (2, 0));
        let taken = server.transmit.take(ledger, &mut packets);
        assert_eq!(taken, violation.map_or(Ok(Some((1, 2))), Err));
        assert_eq!(packets[..1] == [other], violation.is_none());
    }
}

/// A faulty server cannot make the application read outside of the packet's buffers: only the
/// second and later buffers of a received packet may have data in their headroom, and none beyond
/// its end.
#[test]
fn received_chains_lie_in_their_buffers() {
    let pair = Pair::new(8, 8);
    let end = pair.pool.frame_bytes();
    let first = Descriptor {
        buffer: 0,
        start: HEADROOM_BYTES,
        len: end - HEADROOM_BYTES,
        endpoint: 3,
        flags: MORE,
    };
    let next = Descriptor { buffer: 1, start: 0, len: end, endpoint: 3, flags: 0 };
    let chains = [
        ([first, next], Ok(2)),
        ([first, Descriptor { start: HEADROOM_BYTES, len: 1, ..next }], Ok(2)),
        ([Descriptor { start: 0, len: end, ..first }, next], Err(Violation::Range)),
        ([first, Descriptor { start: 1, ..next }], Err(Violation::Range)),
        ([first, Descriptor { start: 1, len: 1, ..next }], Err(Violation::Range)),
        ([Descriptor { len: 1, ..first }, next], Err(Violation::Range)),
        ([first, Descriptor { buffer: 3, ..next }], Err(Violation::Range)),
        ([first, Descriptor { len: 0, ..next }], Err(Violation::Range)),
        (
            [first, Descriptor { buffer: 2, start: HEADROOM_BYTES, len: 1, ..next }],
            Err(Violation::Ownership),
        ),
        ([first, Descriptor { flags: MORE, ..next }], Err(Violation::Chain)),
    ];
    for (chain, expected) in chains {
        let pair = Pair::new(8, 8);
        let (_, mut consumer) = pair.application();
        assert!((0..2).all(|buffer| consumer.provide(buffer)));
        consumer.publish();
        let words = 2 * LINE_WORDS;
        for (slot, one) in chain.into_iter().enumerate() {
            for (word, value) in one.to_words().into_iter().enumerate() {
                pair.server.word(words + 2 * slot + word).store(value, Ordering::Relaxed);
            }
        }
        pair.server.word(LINE_WORDS).store(2, Ordering::Release);
        consumer.observe().unwrap();
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        assert_eq!(consumer.take(&mut packet), expected);
        assert!(expected.is_err() || packet[..2] == chain);
    }
    assert!(first.is_followed_by(&next, &pair.pool));
    let strangers =
        [Descriptor { start: HEADROOM_BYTES, len: 1, ..next }, Descriptor { buffer: 2, ..next }];
    assert!(strangers.iter().all(|other| !first.is_followed_by(other, &pair.pool)));
    assert!(!Descriptor { len: 1, ..first }.is_followed_by(&next, &pair.pool));
}

/// A faulty server cannot fill buffers that it does not see yet.
#[test]
fn buffers_are_filled_once_published() {
    let pair = Pair::new(8, 8);
    let (_, mut consumer) = pair.application();
    assert!(consumer.provide(0));
    consumer.publish();
    assert!(consumer.provide(1));
    pair.server.word(LINE_WORDS).store(2, Ordering::Release);
    assert_eq!(consumer.observe(), Err(Violation::Index));
    consumer.publish();
    assert_eq!(consumer.observe(), Ok(2));
}

/// The application takes packets of one buffer up to the first of another kind, or that fails a
/// check, which a faulty server wrote.
#[test]
fn received_singles_are_taken_up_to_the_first_other_one() {
    let single =
        |buffer| Descriptor { buffer, start: HEADROOM_BYTES, len: 60, endpoint: 3, flags: 0 };
    let others = [
        (Descriptor { flags: MORE, ..single(2) }, Ok(0)),
        (Descriptor { flags: META, ..single(2) }, Ok(2)),
        (Descriptor { flags: TOGETHER, ..single(2) }, Err(Violation::Flags)),
        (single(8), Err(Violation::Buffer)),
        (single(3), Err(Violation::Ownership)),
        (Descriptor { start: 0, ..single(2) }, Err(Violation::Range)),
    ];
    for (other, expected) in others {
        let pair = Pair::new(8, 8);
        let (_, mut consumer) = pair.application();
        assert!((0..4).all(|buffer| consumer.provide(buffer)));
        let mut server = pair.server();
        consumer.publish();
        assert_eq!(server.receive.observe(&mut server.receive_ledger), Ok(4));
        let words = 2 * LINE_WORDS;
        for (slot, one) in [single(0), single(1), other, single(3)].into_iter().enumerate() {
            for (word, value) in one.to_words().into_iter().enumerate() {
                pair.server.word(words + 2 * slot + word).store(value, Ordering::Relaxed);
            }
        }
        pair.server.word(LINE_WORDS).store(4, Ordering::Release);
        assert_eq!(consumer.observe(), Ok(4));
        let mut packets = [Descriptor::default(); MAX_CHAIN];
        let first = consumer.take_singles(&mut packets);
        let before = if expected == Ok(2) { 4 } else { 2 };
        assert_eq!((first, consumer.waiting()), (Ok(before), 4 - before as u32), "{other:?}");
        assert_eq!(packets[..2], [single(0), single(1)]);
        let again = consumer.take_singles(&mut packets);
        assert_eq!(again.err(), expected.err(), "{other:?}");
    }
}

/// To peek returns the next packet's endpoint and flags, takes nothing, and finds an impossible
/// index.
#[test]
fn peek_takes_nothing() {
    let pair = Pair::new(8, 8);
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    assert_eq!(server.transmit.peek(), Ok(None));
    let one = |buffer, endpoint, flags| Descriptor {
        buffer,
        start: HEADROOM_BYTES,
        len: 60,
        endpoint,
        flags,
    };
    assert!(producer.push(&[one(1, 7, EXPEDITED)]) && producer.push(&[one(2, 3, TOGETHER)]));
    producer.publish();
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    for (endpoint, flags) in [(7, EXPEDITED), (3, TOGETHER)] {
        for _ in 0..2 {
            assert_eq!(server.transmit.peek(), Ok(Some((endpoint, flags))));
        }
        assert_eq!(server.transmit.seen(), 2);
        server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap();
        assert_eq!((packet[0].endpoint, packet[0].flags), (endpoint, flags));
    }
    assert_eq!(server.transmit.peek(), Ok(None));
    pair.application.word(0).store(11, Ordering::Release);
    assert_eq!(server.transmit.peek(), Err(Violation::Index));
}

/// A peer that acknowledges events without taking them cannot make the event queue overflow.
#[test]
fn events_acknowledged_and_not_taken() {
    let shape = EventShape::new(4).unwrap();
    let ours = Memory::new(shape.marker_words());
    let theirs = Memory::new(shape.acknowledger_words());
    let mut marker = Marker::new(shape, ours.own(), &theirs.peer());
    let mut last = Ok(true);
    for _ in 0..5 {
        last = marker.mark(events::fence(), 2);
        let bits = theirs.word(LINE_WORDS).load(Ordering::Relaxed);
        theirs.word(LINE_WORDS).store(bits ^ 1 << 2, Ordering::Relaxed);
    }
    assert_eq!(last, Err(Violation::Event));
}

/// Events for queue pairs that do not exist, and an impossible index.
#[test]
fn impossible_events_are_violations() {
    let shape = EventShape::new(4).unwrap();
    let ours = Memory::new(shape.acknowledger_words());
    let theirs = Memory::new(shape.marker_words());
    let mut acknowledger = Acknowledger::new(shape, ours.own(), &theirs.peer());
    theirs.word(0).store(5, Ordering::Relaxed);
    assert_eq!(acknowledger.take(8, |_| {}), Err(Violation::Index));
    theirs.word(0).store(1, Ordering::Relaxed);
    theirs.word(LINE_WORDS).store(4, Ordering::Relaxed);
    assert_eq!(acknowledger.take(8, |_| panic!("not a queue pair")), Err(Violation::Event));
}
