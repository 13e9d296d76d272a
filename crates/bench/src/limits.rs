//! What the hardware can do: what no queue can be better than.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::Context;
use towpath_rig::pin;

use crate::Settings;
use crate::bare;
use crate::machine::two_cores;
use crate::report::Row;

/// How often each is measured.
const SAMPLES: usize = 5;

/// A word on a line pair of its own.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures the limits that every report carries.
///
/// # Errors
/// When there are no two cores, or no memory.
pub fn measure(settings: Settings) -> anyhow::Result<Vec<Row>> {
    let cores = two_cores()?;
    let round_trips = if settings.quick { 50_000 } else { 200_000 };
    let lines: Vec<_> =
        (0..SAMPLES).map(|_| line_round_trip_ns(cores, round_trips)).collect::<Result<_, _>>()?;
    let buffer = if settings.quick { 128 << 20 } else { 256 << 20 };
    let mut copy = Copy::new(buffer);
    let copies: Vec<_> = (0..SAMPLES).map(|_| copy.once()).collect();
    let mut rows = vec![
        Row::new("cache line round trip", &[], "ns", &lines),
        Row::new(
            "memory copy beyond the caches",
            &[("buffer_bytes", buffer as f64)],
            "GB/s",
            &copies,
        ),
    ];
    for (frame_bytes, packets) in [(64, 2_000_000u64), (1500, 300_000)] {
        let packets = if settings.quick { packets } else { packets * 4 };
        let packets = packets.next_multiple_of(bare::BATCH as u64);
        let runs: Vec<_> = (0..SAMPLES)
            .map(|_| bare::run(cores, frame_bytes, packets))
            .collect::<Result<_, _>>()?;
        rows.push(Row::new(
            "bare ring, written and read",
            &[("frame_bytes", frame_bytes as f64)],
            "Mpps",
            &runs,
        ));
    }
    Ok(rows)
}

/// Two threads write a word in turn, each after it saw the other's.
fn line_round_trip_ns(cores: (usize, usize), round_trips: u64) -> anyhow::Result<f64> {
    let (ping, pong) = (Line::default(), Line::default());
    let wait = |line: &Line, value: u64| {
        while line.0.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(cores.1);
            for value in 1..=round_trips {
                wait(&ping, value);
                pong.0.store(value, Ordering::Release);
            }
            pinned
        });
        let caller = scope.spawn(|| {
            let pinned = pin(cores.0);
            ping.0.store(1, Ordering::Release);
            wait(&pong, 1);
            let start = Instant::now();
            for value in 2..=round_trips {
                ping.0.store(value, Ordering::Release);
                wait(&pong, value);
            }
            pinned.map(|()| start.elapsed())
        });
        echo.join().ok().context("a thread failed")??;
        let took = caller.join().ok().context("a thread failed")??;
        Ok(took.as_nanos() as f64 / (round_trips - 1) as f64)
    })
}

/// A copy between two buffers that no cache holds.
struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copy {
    fn new(bytes: usize) -> Copy {
        Copy { from: vec![1; bytes], to: vec![2; bytes] }
    }

    /// In bytes copied a nanosecond.
    fn once(&mut self) -> f64 {
        let start = Instant::now();
        self.to.copy_from_slice(&self.from);
        std::hint::black_box(&self.to);
        self.from.len() as f64 / start.elapsed().as_nanos() as f64
    }
}
