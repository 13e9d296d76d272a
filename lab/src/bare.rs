//! A bare single-producer single-consumer queue: the cost of a queue between two sides that trust
//! each other. Both sides prefetch packets as far ahead as Towpath's queues do.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use towpath_memory::{Mapping, Region};
use towpath_queue::descriptor::prefetch_distance;
use towpath_testkit::pin;

/// Descriptors in a queue, and buffers behind it.
pub(crate) const SLOTS: usize = 256;
/// Descriptors published together.
pub(crate) const BATCH: usize = 64;

/// Returns the distance between buffers, in bytes: as in buffer pools, an odd number of line pairs.
pub(crate) fn buffer_stride(packet_bytes: usize) -> usize {
    ((packet_bytes + 128).div_ceil(128) | 1) * 128
}

/// Writes a packet's bytes into its buffer. Both sides of a measured queue touch every byte.
pub(crate) fn write_frame(memory: &mut Region, offset: usize, payload: &[u8]) {
    assert!(memory.copy_in(offset, payload), "a buffer outside of its memory");
}

/// Reads a packet's bytes. See [`write_frame`].
pub(crate) fn read_frame(memory: &Mapping, offset: usize, into: &mut [u8]) {
    assert!(memory.copy_out(offset, into), "a buffer outside of its memory");
    std::hint::black_box(&*into);
}

/// The end of a race: the producer stops by the clock, the consumer when it has everything
/// produced. A fixed number could take for ever on a core that others share.
pub(crate) struct Finish {
    window: Duration,
    produced: AtomicU64,
}

impl Finish {
    /// Returns whether the consumer, which got this many, must take more.
    pub(crate) fn has_more(&self, got: u64) -> bool {
        got < self.produced.load(Ordering::Acquire)
    }
}

/// Runs two pinned threads, from the moment when both have started. `produce` makes a batch and
/// returns its size, 0 without free space; `consume` runs until it has everything. Returns the
/// packets per second, in millions, by the consumer's clock.
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

/// Runs one window over a bare queue of 16-byte descriptors. Returns millions of packets per
/// second.
pub(crate) fn run(
    cores: (usize, usize),
    packet_bytes: usize,
    window: Duration,
) -> anyhow::Result<f64> {
    run_in_batches(cores, (packet_bytes, BATCH), window)
}

/// Runs as [`run`] does, with at most `batch` descriptors published together.
pub(crate) fn run_in_batches(
    cores: (usize, usize),
    (packet_bytes, batch): (usize, usize),
    window: Duration,
) -> anyhow::Result<f64> {
    let stride = buffer_stride(packet_bytes);
    let mut here = Region::private(SLOTS * stride)?;
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; 2]>::new(SLOTS);
    let payload = vec![0x5a; packet_bytes];
    let mut into = vec![0; packet_bytes];
    let ahead = prefetch_distance(packet_bytes) as usize;
    let there = here.mapping().clone();
    let mut next = 0u64;
    let produce = move || {
        let Ok(chunk) = producer.write_chunk_uninit(batch) else { return 0 };
        let descriptors = (next..next + batch as u64).map(|number| {
            let later = (number as usize + ahead) % SLOTS;
            here.prefetch_to_write(later * stride, packet_bytes);
            let frame = number as usize % SLOTS;
            write_frame(&mut here, frame * stride, &payload);
            [frame as u64, packet_bytes as u64]
        });
        chunk.fill_from_iter(descriptors);
        next += batch as u64;
        batch as u64
    };
    let consume = move |finish: &Finish| {
        let mut got = 0;
        while finish.has_more(got) {
            let waiting = consumer.slots().min(batch);
            let Ok(chunk) = consumer.read_chunk(waiting) else { continue };
            let (first, second) = chunk.as_slices();
            let prefetch = |[frame, len]: &[u64; 2]| {
                there.prefetch(*frame as usize * stride, *len as usize);
            };
            let mut later = first.iter().chain(second);
            later.by_ref().take(ahead).for_each(prefetch);
            for [frame, len] in first.iter().chain(second) {
                later.next().into_iter().for_each(prefetch);
                read_frame(&there, *frame as usize * stride, &mut into[..*len as usize]);
            }
            chunk.commit_all();
            got += waiting as u64;
        }
        got
    };
    race(cores, window, produce, consume)
}
