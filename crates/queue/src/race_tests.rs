//! Both sides of a queue in two threads, over one memory at one address. ThreadSanitizer needs
//! that: it finds no race where two sides map one file at two addresses.
//!
//! The tests access buffers by plain reads and writes, as an application does. A queue that hands a
//! buffer over without ordering the earlier writes then causes a data race that the sanitizer
//! reports, and wrong bytes in ordinary runs.
//!
//! Unsafe lives here because the two sides share buffers by address.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::thread;

use crate::buffers::FreeBuffers;
use crate::descriptor::{Descriptor, HEADROOM_BYTES, MAX_CHAIN};
use crate::optimistic::Optimistic;
use crate::test_memory::Pair;

const SLOTS: u32 = 8;
const PACKETS: u64 = if cfg!(miri) { 100 } else { 5_000 };

/// One number per buffer, which the side that has the buffer writes and reads by plain accesses.
struct Buffers(Vec<UnsafeCell<u64>>);

// SAFETY: the queue gives each buffer to one side at a time, and orders earlier accesses. These
// tests check exactly that.
unsafe impl Sync for Buffers {}

impl Buffers {
    fn new() -> Arc<Buffers> {
        Arc::new(Buffers((0..SLOTS).map(|_| UnsafeCell::new(u64::MAX)).collect()))
    }

    fn write(&self, buffer: u32, value: u64) {
        // SAFETY: the caller has the buffer, see above.
        unsafe { *self.0[buffer as usize].get() = value };
    }

    fn read(&self, buffer: u32) -> u64 {
        // SAFETY: the caller has the buffer, see above.
        unsafe { *self.0[buffer as usize].get() }
    }
}

fn descriptor(buffer: u32) -> Descriptor {
    Descriptor { buffer, start: HEADROOM_BYTES, len: 8, endpoint: 0, flags: 0 }
}

#[test]
fn a_transmit_queue_hands_buffers_over_and_back() {
    let pair = Pair::new(SLOTS, SLOTS);
    let (mut producer, _) = pair.application();
    let mut server = pair.server();
    let buffers = Buffers::new();
    let far = buffers.clone();
    let consumer = thread::spawn(move || {
        let mut packet = [Descriptor::default(); MAX_CHAIN];
        let mut next = 0;
        while next < PACKETS {
            if server.transmit.observe().unwrap() == 0 {
                thread::yield_now();
                continue;
            }
            let ledger = &mut server.transmit_ledger;
            while let Some((1, first)) = server.transmit.take(ledger, &mut packet).unwrap() {
                let buffer = packet[0].buffer;
                assert_eq!(far.read(buffer), next, "the buffer arrived before its data");
                far.write(buffer, u64::MAX);
                next += 1;
                server.transmit.complete(ledger, first, 1);
            }
            server.transmit.publish();
        }
    });
    let mut free = FreeBuffers::new(0, SLOTS);
    let mut next = 0;
    while next < PACKETS {
        producer.reclaim(|buffer| free.release(buffer)).unwrap();
        if free.is_empty() {
            thread::yield_now();
        }
        while next < PACKETS
            && let Some(buffer) = free.take()
        {
            assert_eq!(buffers.read(buffer), u64::MAX, "the buffer returned before it was read");
            buffers.write(buffer, next);
            assert!(producer.push(&[descriptor(buffer)]));
            next += 1;
        }
        producer.publish();
    }
    consumer.join().unwrap();
}

#[test]
fn a_receive_queue_hands_buffers_over_and_back() {
    let pair = Pair::new(SLOTS, SLOTS);
    let (_, mut application) = pair.application();
    let mut server = pair.server();
    let buffers = Buffers::new();
    let far = buffers.clone();
    for buffer in 0..SLOTS {
        assert!(application.provide(buffer));
    }
    application.publish();
    let producer = thread::spawn(move || {
        let mut next = 0;
        while next < PACKETS {
            let ledger = &mut server.receive_ledger;
            if server.receive.observe(ledger).unwrap() == 0 {
                thread::yield_now();
            }
            while next < PACKETS && server.receive.available() > 0 {
                let buffer = server.receive.buffer(0);
                assert_eq!(far.read(buffer), u64::MAX, "the buffer returned before it was read");
                far.write(buffer, next);
                server.receive.push(descriptor(buffer));
                next += 1;
            }
            server.receive.publish(&mut server.receive_ledger);
        }
    });
    let mut packet = [Descriptor::default(); MAX_CHAIN];
    let mut next = 0;
    while next < PACKETS {
        application.observe().unwrap();
        if application.take(&mut packet).unwrap() == 0 {
            thread::yield_now();
            continue;
        }
        let buffer = packet[0].buffer;
        assert_eq!(buffers.read(buffer), next, "the buffer arrived before its data");
        buffers.write(buffer, u64::MAX);
        next += 1;
        assert!(application.provide(buffer));
        application.publish();
    }
    producer.join().unwrap();
}

/// A slot's memory moves from the thread that wrote it to the thread inside, and on to the slot's
/// next taker. The state moves from each thread inside to the next.
#[test]
fn a_section_hands_its_state_and_slots_over() {
    let section = Arc::new(Optimistic::with_memory(vec![0_u64; 4], (0_u64, 0_u64)).unwrap());
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let section = section.clone();
            thread::spawn(move || {
                let mut left = 0;
                for _ in 0..PACKETS {
                    if let Some(mut entered) = section.try_enter() {
                        entered.state().0 += 1;
                        let _ = entered.exit();
                    } else if let Some(mut leaving) = section.leave() {
                        leaving.write(|memory| *memory += 1);
                        leaving.publish();
                        left += 1;
                    }
                    section.drive(|entered| {
                        while let Some(slot) = entered.take() {
                            entered.state().1 += 1;
                            entered.release(slot);
                        }
                        true
                    });
                }
                left
            })
        })
        .collect();
    let left: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let mut entered = section.try_enter().unwrap();
    assert_eq!(entered.state().1, left, "the holders did each slot once");
    assert!(entered.state().0 > 0);
}

/// Races that the sanitizer must report: `tests/sanitize` runs these separately, and fails if they
/// pass. Every other run leaves them out.
#[cfg(towpath_sanitize)]
mod deliberate {
    use super::*;

    /// Two threads write one buffer, and no queue orders their writes.
    #[test]
    fn a_race_is_reported() {
        let buffers = Buffers::new();
        let far = buffers.clone();
        let other = thread::spawn(move || (0..1000).for_each(|value| far.write(0, value)));
        (0..1000).for_each(|value| buffers.write(0, value));
        other.join().unwrap();
    }

    /// A copy writes one byte past the end of its memory.
    #[test]
    fn an_overrun_is_reported() {
        let (from, mut to) = (vec![1_u8; 65], vec![0_u8; 64]);
        let len = std::hint::black_box(65);
        // SAFETY: none: `to` is a byte too short. AddressSanitizer ends the process before the
        // store.
        unsafe { crate::copy::copy(from.as_ptr(), to.as_mut_ptr(), len) };
        std::hint::black_box(to);
    }
}
