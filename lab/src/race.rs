//! Threads that send through one driver of their own process, each as fast as it can.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use towpath_embedded::SendError;
use towpath_testkit::pin;

/// Bytes of a packet.
pub(crate) const FRAME_BYTES: usize = 64;

/// Returns the nanoseconds per packet, all threads together.
///
/// # Errors
/// As [`run`].
pub(crate) fn race(
    cores: (usize, usize),
    threads: usize,
    packets: u64,
    send: impl Fn(usize, &[u8]) -> Result<(), SendError> + Sync,
) -> anyhow::Result<f64> {
    let times = run(cores, threads, packets, send)?;
    let first = times.iter().map(|(start, _)| *start).min();
    let last = times.iter().map(|(_, end)| *end).max();
    let took = last.zip(first).map_or(Duration::ZERO, |(last, first)| last - first);
    Ok(took.as_nanos() as f64 / (threads as u64 * packets) as f64)
}

/// Makes each of `threads` threads send `packets` packets of [`FRAME_BYTES`]; returns when each
/// began and ended.
///
/// # Errors
/// The first error of `send` but `WouldBlock`, after which a thread sends again.
pub(crate) fn run(
    cores: (usize, usize),
    threads: usize,
    packets: u64,
    send: impl Fn(usize, &[u8]) -> Result<(), SendError> + Sync,
) -> anyhow::Result<Vec<(Instant, Instant)>> {
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|number| {
                let (barrier, send) = (&barrier, &send);
                scope.spawn(move || -> anyhow::Result<(Instant, Instant)> {
                    let pinned = match number {
                        0 => pin(cores.0),
                        1 => pin(cores.1),
                        _ => Ok(()),
                    };
                    barrier.wait();
                    pinned?;
                    let start = Instant::now();
                    let packet = [number as u8; FRAME_BYTES];
                    for _ in 0..packets {
                        loop {
                            match send(number, &packet) {
                                Ok(()) => break,
                                // The thread inside needs the processor more.
                                Err(SendError::WouldBlock) => std::thread::yield_now(),
                                Err(error) => return Err(error.into()),
                            }
                        }
                    }
                    Ok((start, Instant::now()))
                })
            })
            .collect();
        let joined = running
            .into_iter()
            .map(|one| one.join().map_err(|_| anyhow::anyhow!("a sending thread failed"))?);
        joined.collect()
    })
}
