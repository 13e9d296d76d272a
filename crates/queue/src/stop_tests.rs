//! Stop anywhere: the test stops the server before its k-th shared store, for every k. A successor
//! continues from the memories and the ledger alone. Each buffer has exactly one holder, no
//! accepted packet is lost, and the successor sends no packet again whose out-of-order completion
//! was noted.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::buffers::FreeBuffers;
use crate::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN};
use crate::events::{Acknowledger, EventShape, Marker, fence};
use crate::test_memory::{Memory, Pair, ServerSide};

thread_local! {
    static STORES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

thread_local! {
    static LOADS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the loads of indices in shared memory, which the views report.
pub(crate) fn count_load() {
    LOADS.set(LOADS.get() + 1);
}

/// Returns how many such loads `body` makes.
pub(crate) fn loads_of(body: impl FnOnce()) -> u64 {
    let before = LOADS.get();
    body();
    LOADS.get() - before
}

struct Stopped;

/// Stops the server when its stores are used up. The views call this before each store into shared
/// memory.
pub(crate) fn before_store() {
    if let Some(left) = STORES_LEFT.get() {
        if left == 0 {
            STORES_LEFT.set(None);
            resume_unwind(Box::new(Stopped));
        }
        STORES_LEFT.set(Some(left - 1));
    }
}

/// Runs `body`, and stops it before store number `stores`, counted from 0. Returns `true` if `body`
/// ended before that store.
fn run_stopped(stores: u64, body: impl FnOnce()) -> bool {
    STORES_LEFT.set(Some(stores));
    let outcome = catch_unwind(AssertUnwindSafe(body));
    STORES_LEFT.set(None);
    match outcome {
        Ok(()) => true,
        Err(cause) if cause.is::<Stopped>() => false,
        Err(cause) => resume_unwind(cause),
    }
}

const BUFFERS: u32 = 32;

/// The wire's record: how often the server sent each packet number, and how many packets arrived.
#[derive(Default)]
struct Wire {
    sent: BTreeMap<u32, u32>,
    arrived: u32,
}

/// Parameters of a server's poll iteration: the size of a batch, and the order of completion.
#[derive(Clone, Copy)]
struct Manner {
    together: usize,
    backwards: bool,
}

/// Runs one poll iteration of a server. The server takes all waiting packets batch by batch, puts
/// the last packet of a batch back once, and sends and completes the packets. Then the server
/// delivers two packets (one of them a chain of two), and publishes.
fn iterate(server: &mut ServerSide, wire: &mut Wire, manner: Manner) {
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    let mut put_back = false;
    server.transmit.observe().unwrap();
    loop {
        let mut taken = Vec::new();
        while taken.len() < manner.together {
            // Packets of one buffer are taken by either routine, in turn.
            let ledger = &mut server.transmit_ledger;
            if taken.len() % 2 == 1
                && let (first, 1) = server.transmit.take_plain(ledger, &mut packet[..1], i64::MAX)
            {
                taken.push((first, 1, packet[0].len));
                continue;
            }
            let one = server.transmit.take(ledger, &mut packet).unwrap();
            let Some((count, first)) = one else { break };
            taken.push((first, count as u32, packet[0].len));
        }
        if taken.is_empty() {
            break;
        }
        if taken.len() > 1 && !put_back {
            put_back = true;
            let (first, ..) = taken.pop().unwrap();
            server.transmit.put_back(&mut server.transmit_ledger, first);
        }
        if manner.backwards {
            taken.reverse();
        }
        for (first, count, number) in taken {
            *wire.sent.entry(number).or_default() += 1;
            server.transmit.complete(&mut server.transmit_ledger, first, count);
        }
    }
    server.transmit.publish();
    server.receive.observe(&mut server.receive_ledger).unwrap();
    for buffers in [1, 2] {
        if server.receive.available() < buffers {
            break;
        }
        wire.arrived += 1;
        for place in 0..buffers {
            let one = Descriptor {
                buffer: server.receive.buffer(0),
                start: HEADROOM_BYTES,
                len: wire.arrived,
                endpoint: 0,
                flags: u16::from(place + 1 < buffers),
            };
            server.receive.push(one);
        }
    }
    server.receive.publish(&mut server.receive_ledger);
}

#[test]
fn stopped_at_every_store() {
    for (together, backwards, after) in [
        (usize::MAX, false, usize::MAX),
        (usize::MAX, true, usize::MAX),
        (usize::MAX, true, 1),
        (usize::MAX, true, 2),
        (2, true, 3),
        (3, true, 1),
    ] {
        let before = Manner { together, backwards };
        let after = Manner { together: after, backwards };
        for round in 0..4 {
            let mut stops = 0;
            while one_life_and_its_successor(round, stops, before, after) {
                stops += 1;
            }
            // A poll iteration has at least twenty stores, and the test stopped the server at each.
            assert!(stops >= 20, "only {stops} stops");
        }
    }
}

/// Returns `true` if the test stopped the server; if not, the poll iteration has at most `stores`
/// stores.
fn one_life_and_its_successor(
    stopped_round: u32,
    stores: u64,
    before: Manner,
    after: Manner,
) -> bool {
    let pair = Pair::new(16, BUFFERS);
    let (mut producer, mut consumer) = pair.application();
    let mut transmit_free = FreeBuffers::new(0, BUFFERS);
    let mut receive_free = FreeBuffers::new(0, BUFFERS);
    let mut wire = Wire::default();
    let mut number = 0;
    let mut received = Vec::new();
    let mut stopped = false;
    let mut server = pair.server();
    for round in 0..12 {
        // The application pushes packets and provides buffers.
        for buffers in [1, 2, 1] {
            if transmit_free.len() < buffers || (producer.room() as usize) < buffers {
                continue;
            }
            number += 1;
            let packet: Vec<_> = (0..buffers)
                .map(|_| Descriptor {
                    buffer: transmit_free.take().unwrap(),
                    start: HEADROOM_BYTES,
                    len: number,
                    endpoint: 0,
                    flags: 0,
                })
                .collect();
            assert!(producer.push(&packet));
        }
        producer.publish();
        while let Some(buffer) = receive_free.take() {
            if !consumer.provide(buffer) {
                receive_free.release(buffer);
                break;
            }
        }
        consumer.publish();
        if round == stopped_round {
            stopped = !run_stopped(stores, || iterate(&mut server, &mut wire, before));
            if stopped {
                server = pair.server();
            }
        } else {
            iterate(&mut server, &mut wire, if stopped { after } else { before });
        }
        producer.reclaim(|buffer| transmit_free.release(buffer)).unwrap();
        consumer.observe().unwrap();
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        loop {
            let count = consumer.take(&mut packet).unwrap();
            if count == 0 {
                break;
            }
            received.push((packet[0].len, count));
            for descriptor in &packet[..count] {
                assert_eq!(descriptor.len, packet[0].len, "a torn chain");
                receive_free.release(descriptor.buffer);
            }
        }
        // Conservation: each buffer is either free, or in the application's queue and perhaps held
        // by the server. The server's ledger agrees.
        let mut places = vec![0; BUFFERS as usize];
        transmit_free.as_slice().iter().for_each(|buffer| places[*buffer as usize] += 1);
        for buffer in 0..BUFFERS {
            if server.transmit_ledger.holds(buffer) {
                assert_eq!(places[buffer as usize], 0, "buffer {buffer} has two holders");
            }
        }
        assert_eq!(transmit_free.len() as u32 + producer.in_flight(), BUFFERS);
        let with_server = consumer.in_flight();
        assert_eq!(receive_free.len() as u32 + with_server, BUFFERS);
        for buffer in receive_free.as_slice() {
            assert!(!server.receive_ledger.holds(*buffer), "buffer {buffer} has two holders");
        }
    }
    assert!(number > 16, "no slot was used again");
    // The server sent every accepted packet once, or twice if the stopped poll iteration sent it.
    producer.reclaim(|buffer| transmit_free.release(buffer)).unwrap();
    assert_eq!(transmit_free.len() as u32, BUFFERS);
    for packet in 1..=number {
        let times = wire.sent.get(&packet).copied().unwrap_or(0);
        assert!((1..=2).contains(&times), "packet {packet} was sent {times} times");
    }
    if !stopped {
        assert!(wire.sent.values().all(|times| *times == 1));
    }
    // The received packets came in order and whole. Deliveries of a stopped poll iteration may be
    // lost.
    assert!(received.is_sorted(), "{received:?}");
    stopped
}

/// The successor does not send a packet again whose completion was noted before the crash.
#[test]
fn packets_completed_out_of_order_are_not_sent_again() {
    let pair = Pair::new(16, BUFFERS);
    let (mut producer, _) = pair.application();
    for buffer in 0..4 {
        let one =
            Descriptor { buffer, start: HEADROOM_BYTES, len: 60 + buffer, ..Default::default() };
        assert!(producer.push(&[one]));
    }
    producer.publish();
    let mut server = pair.server();
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    server.transmit.observe().unwrap();
    let mut firsts = Vec::new();
    while let Some((_, first)) =
        server.transmit.take(&mut server.transmit_ledger, &mut packet).unwrap()
    {
        firsts.push(first);
    }
    server.transmit.complete(&mut server.transmit_ledger, firsts[2], 1);
    server.transmit.publish();
    drop(server);
    let mut successor = pair.server();
    successor.transmit.observe().unwrap();
    // It would not skip the noted packet.
    let ledger = &mut successor.transmit_ledger;
    assert_eq!(successor.transmit.take_plain(ledger, &mut packet, i64::MAX), (0, 0));
    let mut again = Vec::new();
    while let Some((_, first)) =
        successor.transmit.take(&mut successor.transmit_ledger, &mut packet).unwrap()
    {
        again.push(packet[0].buffer);
        successor.transmit.complete(&mut successor.transmit_ledger, first, 1);
    }
    successor.transmit.publish();
    assert_eq!(again, [0, 1, 3]);
    assert_eq!(producer.reclaim(|_| {}), Ok(4));
}

/// A successor that skips a noted packet clears the note, and sends the next packet in that slot.
#[test]
fn a_completion_note_applies_to_one_packet() {
    let pair = Pair::new(8, BUFFERS);
    let (mut producer, _) = pair.application();
    let mut push = |buffer| {
        let one = Descriptor { buffer, start: HEADROOM_BYTES, len: 60, ..Default::default() };
        assert!(producer.push(&[one]), "buffer {buffer}");
        producer.publish();
    };
    (0..8).for_each(&mut push);
    let mut server = pair.server();
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    let take = |server: &mut ServerSide, packet: &mut [Descriptor; MAX_CHAIN]| {
        server.transmit.observe().unwrap();
        let taken = server.transmit.take(&mut server.transmit_ledger, packet).unwrap();
        taken.map(|(_, first)| (first, packet[0].buffer))
    };
    let firsts: Vec<u32> =
        std::iter::from_fn(|| take(&mut server, &mut packet)).map(|(first, _)| first).collect();
    server.transmit.complete(&mut server.transmit_ledger, firsts[1], 1);
    drop(server);
    let mut successor = pair.server();
    // The successor takes the first packet, then skips the noted one and takes the third. It puts
    // both back.
    let (first, buffer) = take(&mut successor, &mut packet).unwrap();
    assert_eq!(buffer, 0);
    let (second, buffer) = take(&mut successor, &mut packet).unwrap();
    assert_eq!(buffer, 2);
    successor.transmit.put_back(&mut successor.transmit_ledger, second);
    assert_eq!(successor.transmit_ledger.held(), 2, "the first, and the noted one after it");
    successor.transmit.put_back(&mut successor.transmit_ledger, first);
    assert_eq!(successor.transmit_ledger.held(), 0);
    for expected in [0, 2, 3, 4, 5, 6, 7] {
        let (first, buffer) = take(&mut successor, &mut packet).unwrap();
        assert_eq!(buffer, expected);
        successor.transmit.complete(&mut successor.transmit_ledger, first, 1);
    }
    assert!(successor.transmit.has_news());
    successor.transmit.publish();
    assert_eq!(producer.reclaim(|_| {}), Ok(8));
    for buffer in 8..16 {
        let one = Descriptor { buffer, start: HEADROOM_BYTES, len: 60, ..Default::default() };
        assert!(producer.push(&[one]));
        producer.publish();
        let (first, got) = take(&mut successor, &mut packet).expect("it is sent");
        assert_eq!(got, buffer);
        successor.transmit.complete(&mut successor.transmit_ledger, first, 1);
    }
}

/// The memories of two event queues, one in each direction.
struct Events {
    shape: EventShape,
    /// What each side writes: the server first. Of each side, its marker and its acknowledger.
    words: [[Memory; 2]; 2],
}

impl Events {
    fn new(queue_pairs: u32) -> Events {
        let shape = EventShape::new(queue_pairs).unwrap();
        let both = || [Memory::new(shape.marker_words()), Memory::new(shape.acknowledger_words())];
        Events { shape, words: [both(), both()] }
    }

    fn side(&self, side: usize) -> (Marker, Acknowledger) {
        let [ours, theirs] = [&self.words[side], &self.words[1 - side]];
        (
            Marker::new(self.shape, ours[0].own(), &theirs[1].peer()),
            Acknowledger::new(self.shape, ours[1].own(), &theirs[0].peer()),
        )
    }
}

fn mark_all(marker: &mut Marker, queue_pairs: &[u32]) -> usize {
    let fenced = fence();
    let new = queue_pairs.iter().filter(|pair| marker.mark(fenced, **pair).unwrap()).count();
    marker.publish();
    new
}

fn take_all(events: &mut Acknowledger) -> Vec<u32> {
    let mut all = Vec::new();
    events.take(u32::MAX, |pair| all.push(pair)).unwrap();
    all
}

/// Wherever the server stops between two stores, both sides restart, and from then on each mark is
/// an event once, in both directions.
#[test]
fn events_restart_after_a_stop_at_every_store() {
    for rounds in 0..5 {
        let mut stops = 0;
        loop {
            let events = Events::new(70);
            let (mut marker, mut taken) = events.side(1);
            let mut server = events.side(0);
            for round in 0..rounds {
                mark_all(&mut marker, &[round, 64 + round]);
                take_all(&mut server.1);
                mark_all(&mut server.0, &[3, round]);
                take_all(&mut taken);
            }
            mark_all(&mut marker, &[1, 2, 69]);
            let ended = run_stopped(stops, || {
                take_all(&mut server.1);
                mark_all(&mut server.0, &[5, 6, 69]);
            });
            // The application goes on without the server for a while.
            mark_all(&mut marker, &[2, 7]);
            if stops % 2 == 0 {
                take_all(&mut taken);
            }
            let mut successor = events.side(0);
            // The application restarts before it asks, and the successor before it answers.
            taken.restart().unwrap();
            marker.restart();
            successor.1.restart().unwrap();
            successor.0.restart();
            assert_eq!(take_all(&mut taken), []);
            assert_eq!(take_all(&mut successor.1), []);
            // More events than the queue has slots, one by one: each is told once.
            for pair in (0..70).chain(0..70) {
                assert_eq!(mark_all(&mut successor.0, &[pair, pair]), 1, "{pair} after {stops}");
                assert_eq!(take_all(&mut taken), [pair]);
                assert_eq!(mark_all(&mut marker, &[pair, pair]), 1, "{pair} after {stops}");
                assert_eq!(take_all(&mut successor.1), [pair]);
            }
            if ended {
                break;
            }
            stops += 1;
        }
        assert!(stops >= 10, "only {stops} stops");
    }
}
