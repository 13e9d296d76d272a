//! A bare single-producer single-consumer ring: what a queue costs that trusts everybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use towpath_protocol::memory::Mapping;
use towpath_rig::pin;

/// Descriptors in a ring, and frames behind it.
pub(crate) const SLOTS: usize = 256;
/// Descriptors published at once.
pub(crate) const BATCH: usize = 64;

/// Distance between frames, in bytes: as in heaps, an odd number of line pairs.
pub(crate) fn frame_stride(frame_bytes: usize) -> usize {
    ((frame_bytes + 128).div_ceil(128) | 1) * 128
}

/// What both sides of a measured queue do with a frame's bytes: all are written, all are read.
pub(crate) fn write_frame(memory: &Mapping, offset: usize, payload: &[u8]) {
    assert!(memory.copy_in(offset, payload), "a frame outside of its memory");
}

/// See [`write_frame`].
pub(crate) fn read_frame(memory: &Mapping, offset: usize, into: &mut [u8]) {
    assert!(memory.copy_out(offset, into), "a frame outside of its memory");
    std::hint::black_box(&*into);
}

/// Lets two pinned threads run, from when both are there; answers packets a second, in millions,
/// as the consumer saw them.
pub(crate) fn race(
    cores: (usize, usize),
    packets: u64,
    produce: impl FnOnce() + Send,
    consume: impl FnOnce() + Send,
) -> anyhow::Result<f64> {
    let ready = AtomicBool::new(false);
    thread::scope(|scope| {
        let producer = scope.spawn(|| {
            pin(cores.0)?;
            while !ready.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            produce();
            anyhow::Ok(())
        });
        let consumer = scope.spawn(|| {
            let pinned = pin(cores.1);
            ready.store(true, Ordering::Release);
            pinned?;
            let start = Instant::now();
            consume();
            anyhow::Ok(start.elapsed())
        });
        producer.join().ok().context("the producer failed")??;
        let took = consumer.join().ok().context("the consumer failed")??;
        Ok(packets as f64 / took.as_secs_f64() / 1e6)
    })
}

/// One run over a bare ring of 16-byte descriptors, in millions of packets a second.
pub(crate) fn run(cores: (usize, usize), frame_bytes: usize, packets: u64) -> anyhow::Result<f64> {
    let stride = frame_stride(frame_bytes);
    let memory = Arc::new(Mapping::private(SLOTS * stride)?);
    let (mut producer, mut consumer) = rtrb::RingBuffer::<[u64; 2]>::new(SLOTS);
    let payload = vec![0x5a; frame_bytes];
    let mut into = vec![0; frame_bytes];
    let (here, there) = (memory.clone(), memory);
    let produce = move || {
        let mut next = 0u64;
        while next < packets {
            let Ok(chunk) = producer.write_chunk_uninit(BATCH) else {
                std::hint::spin_loop();
                continue;
            };
            let descriptors = (next..next + BATCH as u64).map(|number| {
                let frame = number as usize % SLOTS;
                write_frame(&here, frame * stride, &payload);
                [frame as u64, frame_bytes as u64]
            });
            chunk.fill_from_iter(descriptors);
            next += BATCH as u64;
        }
    };
    let consume = move || {
        let mut got = 0;
        while got < packets {
            let waiting = consumer.slots().min(BATCH);
            let Ok(chunk) = consumer.read_chunk(waiting) else { continue };
            let (first, second) = chunk.as_slices();
            for [frame, len] in first.iter().chain(second) {
                read_frame(&there, *frame as usize * stride, &mut into[..*len as usize]);
            }
            chunk.commit_all();
            got += waiting as u64;
        }
    };
    race(cores, packets, produce, consume)
}
