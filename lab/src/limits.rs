//! The hardware's limits: no queue can be better.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use towpath_testkit::pin;

use crate::Settings;
use crate::bare;
use crate::machine::two_cores;
use crate::report::Row;

/// The number of samples of each.
const SAMPLES: usize = 5;

/// A word on its own line pair.
#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures the limits that every report carries.
///
/// # Errors
/// If there are no two cores, or no memory.
pub fn measure(settings: Settings) -> anyhow::Result<Vec<Row>> {
    let cores = two_cores()?;
    let window = Duration::from_millis(if settings.quick { 30 } else { 200 });
    let lines: Vec<_> =
        (0..SAMPLES).map(|_| line_round_trip_ns(cores, window)).collect::<Result<_, _>>()?;
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
    for packet_bytes in [64, 1500] {
        let runs: Vec<_> = (0..SAMPLES)
            .map(|_| bare::run(cores, packet_bytes, window))
            .collect::<Result<_, _>>()?;
        rows.push(Row::new(
            "bare queue, written and read",
            &[("packet_bytes", packet_bytes as f64)],
            "Mpps",
            &runs,
        ));
    }
    Ok(rows)
}

/// Makes two threads write a word in turn, each after it saw the other's, for a time.
pub(crate) fn line_round_trip_ns(cores: (usize, usize), window: Duration) -> anyhow::Result<f64> {
    const OVER: u64 = u64::MAX;
    let (ping, pong) = (Line::default(), Line::default());
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = pin(cores.1);
            let mut last = 0;
            while last != OVER {
                let now = ping.0.load(Ordering::Acquire);
                if now == last {
                    std::hint::spin_loop();
                    continue;
                }
                pong.0.store(now, Ordering::Release);
                last = now;
            }
            pinned
        });
        let caller = scope.spawn(|| {
            let pinned = pin(cores.0);
            let (mut value, mut start) = (0, Instant::now());
            let took = loop {
                value += 1;
                ping.0.store(value, Ordering::Release);
                while pong.0.load(Ordering::Acquire) != value {
                    std::hint::spin_loop();
                }
                if value == 1 {
                    // Both threads have started.
                    start = Instant::now();
                } else if value % 64 == 0 && start.elapsed() >= window {
                    break start.elapsed();
                }
            };
            ping.0.store(OVER, Ordering::Release);
            pinned.map(|()| took.as_nanos() as f64 / (value - 1) as f64)
        });
        echo.join().ok().context("a thread failed")??;
        Ok(caller.join().ok().context("a thread failed")??)
    })
}

/// A copy between two buffers larger than the caches.
struct Copy {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Copy {
    fn new(bytes: usize) -> Copy {
        Copy { from: vec![1; bytes], to: vec![2; bytes] }
    }

    /// Returns the bytes copied per nanosecond.
    fn once(&mut self) -> f64 {
        let start = Instant::now();
        self.to.copy_from_slice(&self.from);
        std::hint::black_box(&self.to);
        self.from.len() as f64 / start.elapsed().as_nanos() as f64
    }
}
