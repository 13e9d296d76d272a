//! Queues compared with simple oracles, driven by random steps.

use std::collections::VecDeque;

use proptest::prelude::*;

use crate::Violation;
use crate::buffers::FreeBuffers;
use crate::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN, MORE, PoolShape};
use crate::events::{self, Acknowledger, EventShape, Marker};
use crate::test_memory::{Memory, Pair};

fn descriptor(buffer: u32, len: u32) -> Descriptor {
    Descriptor { buffer, start: HEADROOM_BYTES, len, endpoint: 7, flags: 0 }
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    PublishApplication,
    Observe,
    Take,
    TakePlain(usize),
    Complete(usize),
    PublishServer,
    Reclaim,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..5usize).prop_map(Step::Push),
        Just(Step::PublishApplication),
        Just(Step::Observe),
        Just(Step::Take),
        (1..5usize).prop_map(Step::TakePlain),
        (0..8usize).prop_map(Step::Complete),
        Just(Step::PublishServer),
        Just(Step::Reclaim),
    ]
}

proptest! {
    /// The transmit queue is a FIFO of packets. Buffers return exactly once, in order, and only
    /// after the server completed all packets before them.
    #[test]
    fn transmit_is_a_fifo(steps in proptest::collection::vec(step(), 1..400)) {
        let pair = Pair::new(16, 64);
        let (mut producer, _) = pair.application();
        let mut server = pair.server();
        let mut free = FreeBuffers::new(0, 64);
        let mut pushed: VecDeque<Vec<u32>> = VecDeque::new();
        let mut taken: Vec<(u32, Vec<u32>)> = Vec::new();
        let mut back = 0;
        let mut sent = 0;
        let mut noted = false;
        for step in steps {
            match step {
                Step::Push(count) => {
                    let buffers: Vec<u32> = (0..count).filter_map(|_| free.take()).collect();
                    let packet: Vec<_> = buffers.iter().map(|f| descriptor(*f, 60)).collect();
                    let room = producer.room() as usize;
                    let fits = !packet.is_empty() && packet.len() <= room;
                    prop_assert_eq!(producer.push(&packet), fits);
                    if fits {
                        sent += buffers.len();
                        pushed.push_back(buffers);
                    } else {
                        buffers.into_iter().for_each(|f| free.release(f));
                    }
                }
                Step::PublishApplication => { producer.publish(); }
                Step::Observe => { server.transmit.observe().unwrap(); }
                Step::Take => {
                    let mut packet = [Descriptor::default(); MAX_CHAIN];
                    let got = server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap();
                    if let Some((count, first)) = got {
                        let buffers: Vec<u32> = packet[..count].iter().map(|d| d.buffer).collect();
                        prop_assert_eq!(Some(&buffers), pushed.front());
                        for (place, d) in packet[..count].iter().enumerate() {
                            prop_assert_eq!(d.flags & MORE != 0, place + 1 < count);
                            prop_assert!(server.transmit_ledger.holds(d.buffer));
                        }
                        pushed.pop_front();
                        taken.push((first, buffers));
                    }
                }
                Step::TakePlain(most) => {
                    let mut packets = [Descriptor::default(); 4];
                    let waiting = server.transmit.waiting();
                    let ledger = &mut server.transmit_ledger;
                    // Each packet has 60 bytes.
                    let bytes = 60 * 3 - 59;
                    let (first, count) = server.transmit.take_plain(ledger, &mut packets[..most], bytes);
                    let fits = pushed.iter().take(most.min(3).min(waiting as usize));
                    let plain = fits.take_while(|buffers| buffers.len() == 1).count();
                    // The server takes the packets behind the end of the memory separately.
                    let plain = plain.min((producer.capacity() - first % producer.capacity()) as usize);
                    // While completions are noted out of order, the server takes none this way.
                    prop_assert!(count == plain || noted && count == 0, "{count}, not {plain}");
                    for (place, d) in packets[..count].iter().enumerate() {
                        prop_assert_eq!(Some(vec![d.buffer]), pushed.pop_front());
                        prop_assert!(server.transmit_ledger.holds(d.buffer));
                        taken.push((first.wrapping_add(place as u32), vec![d.buffer]));
                    }
                }
                Step::Complete(which) => if !taken.is_empty() {
                    noted |= which % taken.len() > 0;
                    let (first, buffers) = taken.remove(which % taken.len());
                    server.transmit.complete(&mut server.transmit_ledger, first, buffers.len() as u32);
                },
                Step::PublishServer => { server.transmit.publish(); }
                Step::Reclaim => {
                    back += producer.reclaim(|buffer| free.release(buffer)).unwrap() as usize;
                }
            }
        }
        prop_assert_eq!(sent - back, producer.in_flight() as usize);
        prop_assert_eq!(free.len() + producer.in_flight() as usize, 64);
        // The server completes everything.
        producer.publish();
        server.transmit.observe().unwrap();
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        while let Some((count, first)) =
            server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap() {
            taken.push((first, packet[..count].iter().map(|d| d.buffer).collect()));
        }
        for (first, buffers) in taken {
            server.transmit.complete(&mut server.transmit_ledger, first, buffers.len() as u32);
        }
        server.transmit.publish();
        producer.reclaim(|buffer| free.release(buffer)).unwrap();
        prop_assert_eq!(free.len(), 64);
        prop_assert_eq!(server.transmit_ledger.held(), 0);
    }

    /// Received descriptors come in order, each with the buffer provided for it.
    #[test]
    fn receive_is_a_fifo(moves in proptest::collection::vec(0..7u8, 1..400)) {
        let pair = Pair::new(8, 16);
        let (_, mut consumer) = pair.application();
        let mut server = pair.server();
        let mut free = FreeBuffers::new(0, 16);
        let mut filled = VecDeque::new();
        let mut number = 0;
        for step in moves {
            match step {
                0 => if let Some(buffer) = free.take() && !consumer.provide(buffer) {
                    free.release(buffer);
                },
                1 => { consumer.publish(); }
                2 => {
                    if server.receive.observe(&mut server.receive_ledger).unwrap() > 0 {
                        number += 1;
                        let d = descriptor(server.receive.buffer(0), number);
                        server.receive.push(d);
                        filled.push_back(d);
                    }
                }
                3 => { server.receive.publish(&mut server.receive_ledger); }
                4 => {
                    let (free_before, room) = (free.len() as u32, consumer.room());
                    let count = consumer.provide_from(&mut free, 5);
                    prop_assert_eq!(count, free_before.min(room).min(5));
                    prop_assert_eq!(free_before - count, free.len() as u32);
                }
                5 => {
                    let waiting = consumer.waiting() as usize;
                    let mut packets = [Descriptor::default(); 3];
                    let count = consumer.take_singles(&mut packets).unwrap();
                    prop_assert!(count <= waiting.min(3) && (count > 0 || waiting == 0));
                    for one in &packets[..count] {
                        prop_assert_eq!(Some(*one), filled.pop_front());
                    }
                    free.release_all(packets[..count].iter().map(|one| one.buffer));
                }
                _ => {
                    consumer.observe().unwrap();
                    let mut packet = [Descriptor::default(); MAX_CHAIN];
                    if consumer.take(&mut packet).unwrap() == 1 {
                        prop_assert_eq!(Some(packet[0]), filled.pop_front());
                        free.release(packet[0].buffer);
                    }
                }
            }
        }
    }

    /// The marker queues an event exactly when none is pending; each event taken was marked.
    #[test]
    fn events_against_a_set(moves in proptest::collection::vec((0..3u8, 0..70u32), 1..300)) {
        let shape = EventShape::new(70).unwrap();
        let (ours, theirs) = (Memory::new(shape.marker_words()), Memory::new(shape.acknowledger_words()));
        let mut marker = Marker::new(shape, ours.own(), &theirs.peer());
        let mut acknowledger = Acknowledger::new(shape, theirs.own(), &ours.peer());
        let mut pending = VecDeque::new();
        let mut known = 0;
        for (step, queue_pair) in moves {
            match step {
                0 => {
                    let new = !pending.contains(&queue_pair);
                    prop_assert_eq!(marker.mark(events::fence(), queue_pair).unwrap(), new);
                    if new { pending.push_back(queue_pair); }
                }
                1 => { prop_assert_eq!(marker.publish(), pending.len() > known); known = pending.len(); }
                _ => {
                    let mut found = Vec::new();
                    // The acknowledger uses up its last observation before it observes again.
                    while acknowledger.take(queue_pair % 5 + 1, |pair| found.push(pair)).unwrap() > 0 {}
                    prop_assert_eq!(found.len(), known);
                    for pair in found { prop_assert_eq!(pending.pop_front(), Some(pair)); }
                    known = 0;
                    prop_assert!(acknowledger.is_idle().unwrap());
                }
            }
        }
    }

    /// The server fetches bytes from any offset, and never past the end.
    #[test]
    fn bytes_are_fetched(offset in 0..40usize, len in 0..50usize) {
        let memory = Memory::new(5);
        let bytes: Vec<u8> = (1..=40).collect();
        for (word, bytes) in bytes.chunks(8).enumerate() {
            let value = u64::from_le_bytes(bytes.try_into().unwrap());
            memory.word(word).store(value, std::sync::atomic::Ordering::Relaxed);
        }
        let mut got = vec![0; len];
        let inside = offset + len <= 40;
        prop_assert_eq!(memory.peer().fetch_bytes(offset, &mut got), inside);
        if inside {
            prop_assert_eq!(&got, &bytes[offset..offset + len]);
        }
    }

    /// Words form a descriptor and back, and none outside of the pool passes the check.
    #[test]
    fn descriptors_are_checked(a in any::<u64>(), b in any::<u64>(), buffers in 1..200u32, data in 1..9000u32) {
        let pool = PoolShape::new(buffers, data).unwrap();
        prop_assert_eq!(pool.frame_bytes() / 128 % 2, 1);
        if let Ok(d) = Descriptor::check([a, b], &pool, MORE) {
            prop_assert_eq!(d.to_words(), [a, b]);
            prop_assert!(d.buffer < buffers && d.len > 0 && d.start >= HEADROOM_BYTES);
            prop_assert!(d.start + d.len <= pool.frame_bytes());
            prop_assert!(d.pool_offset(&pool) + d.len as usize <= pool.pool_bytes());
        }
        let good = descriptor(a as u32 % buffers, (b as u32 % pool.data_bytes()).max(1));
        prop_assert_eq!(Descriptor::check(good.to_words(), &pool, 0), Ok(good));
    }
}

#[test]
fn indices_wrap() {
    let pair = Pair::new(8, 8);
    // Both indices are near the end of 32 bits, as after four billion buffers.
    let near = u64::from(u32::MAX - 3);
    for word in [0, crate::word::LINE_WORDS] {
        pair.application.word(word).store(near, std::sync::atomic::Ordering::Relaxed);
        pair.server.word(word).store(near, std::sync::atomic::Ordering::Relaxed);
    }
    let (mut producer, mut consumer) = pair.application();
    let mut server = pair.server();
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    for round in 0..20 {
        assert!(producer.push(&[descriptor(round % 8, 60)]) && producer.publish());
        assert_eq!(server.transmit.observe(), Ok(1));
        let (count, first) =
            server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap().unwrap();
        server.transmit.complete(&mut server.transmit_ledger, first, count as u32);
        server.transmit.publish();
        assert_eq!(producer.reclaim(|_| {}), Ok(1));
        assert!(consumer.provide(round % 8) && consumer.publish());
        assert_eq!(server.receive.observe(&mut server.receive_ledger), Ok(1));
        let buffer = server.receive.buffer(0);
        server.receive.push(descriptor(buffer, 60));
        server.receive.publish(&mut server.receive_ledger);
        assert_eq!(consumer.observe(), Ok(1));
        assert_eq!(consumer.take(&mut packet), Ok(1));
    }
}

#[derive(Clone, Debug)]
enum AnyOrder {
    Provide(usize),
    Lend,
    PushLent(usize),
    TakeBack(usize),
    Push,
    Publish,
    Take,
}

fn any_order() -> impl Strategy<Value = AnyOrder> {
    prop_oneof![
        (1..9usize).prop_map(AnyOrder::Provide),
        Just(AnyOrder::Lend),
        (0..16usize).prop_map(AnyOrder::PushLent),
        (0..16usize).prop_map(AnyOrder::TakeBack),
        Just(AnyOrder::Push),
        Just(AnyOrder::Publish),
        Just(AnyOrder::Take),
    ]
}

proptest! {
    /// The server fills lent buffers in any order, and others between them. The application gets
    /// the packets in the order in which the server pushed them, and each buffer once.
    #[test]
    fn lent_buffers_return_in_any_order(
        steps in proptest::collection::vec(any_order(), 1..400)
    ) {
        let pair = Pair::new(16, 16);
        let (_, mut consumer) = pair.application();
        consumer.allow_any_order();
        let mut server = pair.server();
        let mut free = FreeBuffers::new(0, 16);
        let (mut lent, mut pushed): (Vec<u32>, VecDeque<u32>) = Default::default();
        let mut published = 0;
        for step in steps {
            match step {
                AnyOrder::Provide(most) => {
                    consumer.provide_from(&mut free, most as u32);
                    consumer.publish();
                    server.receive.observe(&mut server.receive_ledger).unwrap();
                }
                AnyOrder::Lend => {
                    let was = server.receive.available();
                    let buffer = server.receive.lend();
                    prop_assert_eq!(buffer.is_some(), was > 0);
                    lent.extend(buffer);
                }
                AnyOrder::PushLent(which) => if !lent.is_empty() {
                    let buffer = lent.swap_remove(which % lent.len());
                    server.receive.push_lent(descriptor(buffer, 60));
                    pushed.push_back(buffer);
                },
                AnyOrder::TakeBack(which) => if !lent.is_empty() {
                    server.receive.take_back(lent.swap_remove(which % lent.len()));
                },
                AnyOrder::Push => if server.receive.available() > 0 {
                    let buffer = server.receive.buffer(0);
                    server.receive.push(descriptor(buffer, 60));
                    pushed.push_back(buffer);
                },
                AnyOrder::Publish => {
                    server.receive.publish(&mut server.receive_ledger);
                    published = pushed.len();
                }
                AnyOrder::Take => {
                    let mut packet = [Descriptor::default(); MAX_CHAIN];
                    consumer.observe().unwrap();
                    let count = consumer.take(&mut packet).unwrap();
                    prop_assert_eq!(count, usize::from(published > 0));
                    if count > 0 {
                        prop_assert_eq!(Some(packet[0].buffer), pushed.pop_front());
                        published -= 1;
                        free.release(packet[0].buffer);
                    }
                }
            }
            prop_assert_eq!(server.receive.lent() as usize, lent.len());
            let mut all: Vec<u32> = lent.iter().chain(&pushed).copied().collect();
            all.extend((0..server.receive.available()).map(|ahead| server.receive.buffer(ahead)));
            all.extend(free.as_slice());
            all.sort_unstable();
            prop_assert_eq!(all, (0..16).collect::<Vec<u32>>());
        }
    }
}

#[test]
fn an_application_takes_no_buffer_that_it_did_not_provide() {
    let pair = Pair::new(8, 8);
    let (_, mut consumer) = pair.application();
    consumer.allow_any_order();
    let mut server = pair.server();
    for buffer in 0..4 {
        assert!(consumer.provide(buffer));
    }
    consumer.publish();
    server.receive.observe(&mut server.receive_ledger).unwrap();
    let buffer = server.receive.lend().unwrap();
    server.receive.push_lent(descriptor(buffer, 60));
    server.receive.publish(&mut server.receive_ledger);
    // A faulty server names the buffer once more.
    server.receive.lend().unwrap();
    server.receive_ledger.take(buffer).unwrap();
    server.receive.push_lent(descriptor(buffer, 60));
    server.receive.publish(&mut server.receive_ledger);
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    assert_eq!((consumer.observe(), consumer.take(&mut packet)), (Ok(2), Ok(1)));
    assert_eq!(consumer.take(&mut packet), Err(Violation::Ownership));
}

#[test]
fn a_buffer_returned_twice_is_detected() {
    let mut free = FreeBuffers::new(0, 2);
    let buffer = free.take().unwrap();
    free.release(buffer);
    assert!(std::panic::catch_unwind(move || free.release(buffer)).is_err());
    let pair = Pair::new(8, 8);
    let mut server = pair.server();
    assert_eq!(server.transmit_ledger.take(3), Ok(()));
    assert_eq!(server.transmit_ledger.take(3), Err(Violation::Ownership));
    assert_eq!(server.transmit_ledger.take(8), Err(Violation::Buffer));
}

/// The next packet is expected where the application's order of buffers goes on. An order that
/// leaves the pool has no next buffer.
#[test]
fn the_next_packet_is_expected_in_the_order_of_the_last_two() {
    let pair = Pair::new(16, 64);
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let mut taken = [Descriptor::default(); MAX_CHAIN];
    for (last_two, expected) in [([3, 4], 5), ([9, 7], 5), ([62, 63], 63), ([1, 0], 0)] {
        for buffer in last_two {
            assert!(producer.push(&[descriptor(buffer, 60)]));
            producer.publish();
            server.transmit.observe().unwrap();
            let ledger = &mut server.transmit_ledger;
            let (_, first) = server.transmit.take(ledger, &mut taken).unwrap().unwrap();
            server.transmit.complete(ledger, first, 1);
        }
        let offset = pair.pool.buffer_offset(expected) + HEADROOM_BYTES as usize;
        assert_eq!(server.transmit.expected_offset(), offset, "after {last_two:?}");
    }
}
