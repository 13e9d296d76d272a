//! A bare single-producer single-consumer ring: what a queue costs that trusts everybody.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use towpath_memory::{Mapping, Region};
use towpath_testkit::pin;

/// Descriptors in a ring, and frames behind it.
pub(crate) const SLOTS: usize = 256;
/// Descriptors published at once.
pub(crate) const BATCH: usize = 64;

/// Distance between frames, in bytes: as in heaps, an odd number of line pairs.
pub(crate) fn buffer_stride(packet_bytes: usize) -> usize {
    ((packet_bytes + 128).div_ceil(128) | 1) * 128
}

/// What both sides of a measured queue do with a frame's bytes: all are written, all are read.
pub(crate) fn write_frame(memory: &mut Region, offset: usize, payload: &[u8]) {
    assert!(memory.copy_in(offset, payload), "a frame outside of its memory");
}

/// See [`write_frame`].
pub(crate) fn read_frame(memory: &Mapping, offset: usize, into: &mut [u8]) {
    assert!(memory.copy_out(offset, into), "a frame outside of its memory");
    std::hint::black_box(&*into);
}

/// When a race is over: the producer by the clock, the consumer when it has what was produced. By
/// time and not by number: on a core shared with others, a number may take for ever.
pub(crate) struct Finish {
    window: Duration,
    produced: AtomicU64,
}

impl Finish {
    /// Whether the consumer, who got so many, is to look for more.
    pub(crate) fn has_more(&self, got: u64) -> bool {
        got < self.produced.load(Ordering::Acquire)
    }
}

/// Lets two pinned threads run, from when both are there: `produce` makes a batch and answers its
/// size, 0 when there is no room; `consume` runs until it has all. Answers packets a second, in
/// millions, as the consumer saw them.
pub(crate) fn race(
    cores: (usize, usize),
    window: Duration,
    mut produce: impl FnMut() -> u64 + Send,
    consume: impl FnOnce(&Finish) -> u64 + Send,
) -> anyhow::Result<f64> {
    let ready = AtomicBool::new(false);
    let finish = Finish { window, produced: AtomicU64::new(u64::MAX) };
    thread::scope(|scope| {
        let producer = scope.spawn(|| {
            let pinned = pin(cores.0);
            while !ready.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let (start, mut produced) = (Instant::now(), 0);
            while start.elapsed() < finish.window {
                match produce() {
                    0 => std::hint::spin_loop(),
                    batch => produced += batch,
                }
            }
            finish.produced.store(produced, Ordering::Release);
            pinned
        });
        let consumer = scope.spawn(|| {
            let pinned = pin(cores.1);
            ready.store(true, Ordering::Release);
            let start = Instant::now();
            let got = consume(&finish);
            pinned.map(|()| (got, start.elapsed()))
        });
        producer.join().ok().context("the producer failed")??;
        let (got, took) = consumer.join().ok().context("the consumer failed")??;
        Ok(got as f64 / took.as_secs_f64() / 1e6)
    })
}

/// One run over a bare queue of 16-byte descriptors, in millions of packets a second.
pub(crate) fn run(
    cores: (usize, usize),
    packet_bytes: usize,
    window: Duration,
) -> anyhow::Result<f64> {
    let stride = buffer_stride(packet_bytes);
    let mut here = Region::private(SLOTS * stride)?;
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; 2]>::new(SLOTS);
    let payload = vec![0x5a; packet_bytes];
    let mut into = vec![0; packet_bytes];
    let there = here.mapping().clone();
    let mut next = 0u64;
    let produce = move || {
        let Ok(chunk) = producer.write_chunk_uninit(BATCH) else { return 0 };
        let descriptors = (next..next + BATCH as u64).map(|number| {
            let frame = number as usize % SLOTS;
            write_frame(&mut here, frame * stride, &payload);
            [frame as u64, packet_bytes as u64]
        });
        chunk.fill_from_iter(descriptors);
        next += BATCH as u64;
        BATCH as u64
    };
    let consume = move |finish: &Finish| {
        let mut got = 0;
        while finish.has_more(got) {
            let waiting = consumer.slots().min(BATCH);
            let Ok(chunk) = consumer.read_chunk(waiting) else { continue };
            let (first, second) = chunk.as_slices();
            for [frame, len] in first.iter().chain(second) {
                read_frame(&there, *frame as usize * stride, &mut into[..*len as usize]);
            }
            chunk.commit_all();
            got += waiting as u64;
        }
        got
    };
    race(cores, window, produce, consume)
}
