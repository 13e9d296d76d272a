//! Rings: what is sent is received, and what the peer writes does no harm.

use fastrand::Rng;

use crate::Violation;
use crate::ring::{CONSUMED, DATA, END, MESSAGE, Next, RingEnd, RingShape, WANTED};
use crate::test_memory::Memory;
use crate::test_ring::{RingFar, RingNear};

type End = RingEnd<RingNear, RingFar>;

/// Returns both ends of a pair of rings, and the memories of each, the first one's first.
fn ends(bytes: [usize; 2]) -> ([End; 2], [Memory; 2]) {
    let shapes = bytes.map(|bytes| RingShape::new(bytes).unwrap());
    let memories = shapes.map(|shape| Memory::new(shape.memory_bytes() / 8));
    let end = |near: usize, far: usize| {
        RingEnd::new(
            (RingNear(memories[near].peer()), shapes[near]),
            (RingFar(memories[far].own()), shapes[far]),
        )
    };
    ([end(0, 1), end(1, 0)], memories)
}

fn send(end: &mut End, message: &[u8]) -> bool {
    if !end.find_room(message.len()).unwrap() {
        return false;
    }
    // In two pieces, as a caller may.
    let (first, rest) = message.split_at(message.len() / 3);
    end.write(0, first);
    end.write(first.len(), rest);
    end.append(message.len());
    true
}

fn receive(end: &mut End) -> Option<Vec<u8>> {
    let Next::Message(len) = end.peek().unwrap() else { return None };
    let mut message = vec![0; len];
    end.read(0, &mut message);
    end.consume(len);
    Some(message)
}

#[test]
fn shapes_are_powers_of_two() {
    for wrong in [0, 32, 63, 65, 96, 1 << 30] {
        assert!(RingShape::new(wrong).is_none(), "{wrong}");
    }
    assert!(RingShape::in_memory(255).is_none() && RingShape::in_memory(256 + 96).is_none());
    let shape = RingShape::in_memory(256 + 64).unwrap();
    assert_eq!((shape.memory_bytes(), shape.max_message()), (320, 48));
}

/// Sides that send, receive and give up at random agree with a queue of vectors.
#[test]
fn messages_are_those_of_a_queue() {
    let mut random = Rng::with_seed(0x9e37_79b9);
    let mut next = |below: usize| random.usize(..below);
    let ([mut one, mut other], _) = ends([64, 256]);
    let mut queues = [std::collections::VecDeque::new(), std::collections::VecDeque::new()];
    let mut received = [0; 2];
    for round in 0..if cfg!(miri) { 500 } else { 100_000_u32 } {
        let way = next(2);
        let (from, to) = if way == 0 { (&mut one, &mut other) } else { (&mut other, &mut one) };
        if next(2) == 0 {
            let message = vec![round as u8; next(from.max_message() + 1)];
            let room = from.room().unwrap().is_some_and(|room| room >= message.len());
            assert_eq!(send(from, &message), room);
            if room {
                queues[way].push_back(message);
            }
        } else {
            received[way] += u32::from(!queues[way].is_empty());
            if next(2) == 0 {
                from.publish();
            }
            let unseen = receive(to);
            assert!(unseen.is_none() || unseen == queues[way].pop_front());
            // Whatever was not published yet is there now.
            from.publish();
            assert_eq!(receive(to), queues[way].pop_front());
        }
    }
    assert!(cfg!(miri) || received.iter().all(|received| *received > 10_000));
}

#[test]
fn old_bytes_are_no_header() {
    let ([mut one, mut other], _) = ends([256, 256]);
    // Bytes that look like a header at every word.
    let looks: Vec<u8> = (8 | MESSAGE << 32).to_le_bytes().repeat(30);
    for len in (0..=240).step_by(8).cycle().take(200) {
        assert!(send(&mut one, &looks[..len]));
        // A batch ends with an eighth of the ring.
        let is_published = other.peek() != Ok(Next::Nothing);
        assert_eq!(is_published, 8 + len >= 256 / 8, "{len} bytes");
        one.publish();
        assert_eq!(receive(&mut other).unwrap(), looks[..len]);
        assert_eq!(other.peek(), Ok(Next::Nothing));
    }
}

#[test]
fn a_longest_message_fits_an_empty_ring_only() {
    let ([mut one, mut other], _) = ends([128, 128]);
    assert!(!one.find_room(113).unwrap(), "too long");
    assert!(send(&mut one, b""));
    assert!(!one.find_room(112).unwrap(), "what publishes, too");
    assert_eq!(receive(&mut other), Some(vec![]));
    assert!(!one.has_wanted_room().unwrap(), "less than an eighth is not told at once");
    assert_eq!(receive(&mut other), None);
    assert!(one.has_wanted_room().unwrap() && send(&mut one, &[7; 112]));
    assert!(!one.find_room(0).unwrap());
    assert_eq!(receive(&mut other), Some(vec![7; 112]));
    one.append_end();
    one.publish();
    assert_eq!(other.peek(), Ok(Next::End));
}

#[test]
fn a_peer_is_woken_for_messages_and_for_the_room_that_it_wants() {
    let ([mut one, mut other], _) = ends([64, 64]);
    let wakes = |end: &mut End| end.flush().is_some();
    assert!(!wakes(&mut one) && !wakes(&mut other));
    assert!(send(&mut one, &[1; 16]) && wakes(&mut one) && !wakes(&mut one));
    assert!(receive(&mut other).is_some() && !wakes(&mut other), "no one waits for room");
    assert!(send(&mut one, &[2; 24]) && !send(&mut one, &[3; 24]));
    one.prepare_sleep();
    assert!(!one.has_wanted_room().unwrap());
    assert!(receive(&mut other).is_some() && receive(&mut other).is_none());
    assert!(wakes(&mut other) && !wakes(&mut other), "once");
    assert!(
        one.has_wanted_room().unwrap()
            && send(&mut one, &[3; 24])
            && !one.has_wanted_room().unwrap()
    );
    one.publish();
    // The wish that was met is over, though the peer's memory still holds it.
    assert!(receive(&mut other).is_some() && receive(&mut other).is_none());
    assert!(!wakes(&mut other));
}

#[test]
fn what_a_peer_cannot_have_written_is_a_violation() {
    let ([mut one, mut other], [near, far]) = ends([64, 64]);
    let set = |memory: &Memory, offset: usize, value: u64| {
        memory.word(offset / 8).store(value, core::sync::atomic::Ordering::Relaxed);
    };
    for (header, violation) in [
        (1, Violation::Range),
        (MESSAGE << 32 | 49, Violation::Range),
        (END << 32 | 1, Violation::Range),
        (3 << 32, Violation::Flags),
        (u64::MAX, Violation::Flags),
    ] {
        set(&near, DATA, header);
        assert_eq!(one.peek(), Err(violation), "{header:#x}");
    }
    assert!(send(&mut one, b"1") && send(&mut one, b"2"));
    for consumed in [33, u64::MAX] {
        set(&near, CONSUMED, consumed);
        assert_eq!(one.room(), Err(Violation::Index), "{consumed}");
    }
    set(&near, CONSUMED, 16);
    assert_eq!(one.room(), Ok(Some(64 - 16 - 16)));
    set(&near, CONSUMED, 8);
    assert_eq!(one.find_room(40), Err(Violation::Index), "behind");
    one.publish();
    assert!(receive(&mut other).is_some());
    set(&far, WANTED, u64::MAX);
    assert!(other.flush().is_none());
}

/// Whatever stands in the peer's memory, a side reads and writes inside of the memories.
#[test]
fn any_memory_is_read_inside() {
    let mut random = Rng::with_seed(1);
    for round in 0..if cfg!(miri) { 200 } else { 20_000 } {
        let ([mut one, mut other], [near, _]) = ends([64, 64]);
        for index in 0..near.len() {
            let kind = [0, MESSAGE, MESSAGE, MESSAGE, MESSAGE, MESSAGE, END, 3];
            let word = random.u64(..56) | (kind[random.usize(..8)] << 32);
            near.word(index).store(word, core::sync::atomic::Ordering::Relaxed);
        }
        for step in 0..40 {
            let Ok(next) = one.peek() else { break };
            if let Next::Message(len) = next {
                let mut to = vec![0; len];
                one.read(0, &mut to);
                one.consume(len);
            }
            let Ok(room) = one.find_room((round + step) % 49) else { break };
            if room {
                one.append((round + step) % 49);
            }
            let _ = (one.flush(), one.has_wanted_room(), other.peek());
            one.prepare_sleep();
        }
    }
}
