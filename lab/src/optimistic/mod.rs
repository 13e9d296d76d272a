//! One driver for several threads: an optimistic section against a mutex.
//!
//! Threads send packets through one device of their own process. With the optimistic section, a
//! thread that finds another one inside leaves its packet and goes on; with the mutex it waits.
//! Both drive the same driver with the same memory. One thread alone shows the cost of each without
//! contention. `paths` has the write path and the read path apart.

mod paths;
mod sink;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use towpath_embedded::{Config, Counts, Embedded, Protection, SendError};

use sink::Sink;

use crate::Settings;
use crate::figure::{Axis, Figure, Series};
use crate::latency::Latency;
use crate::machine::two_cores;
use crate::race::{FRAME_BYTES, race, run};
use crate::report::{Outcome, Row};
use crate::statistics::{Pairs, Summary};

/// The driver's work per packet.
const DEVICES: [(&str, bool); 2] = [("memory", false), ("system call", true)];

pub(crate) fn measure(settings: Settings) -> anyhow::Result<Outcome> {
    let cores = two_cores()?;
    let mut outcome = Outcome {
        how: format!(
            "threads of one process send packets of {FRAME_BYTES} bytes through one driver, each as \
             fast as it can; two on cores {} and {}, a third on any core, so that the \
             scheduler sometimes stops one inside. Beside resets: a further thread \
             resets the device, and again a millisecond after each reset. Devices: one takes \
             packets and does nothing, one makes a system call per packet. Write path and read \
             path: a thread on core {} handles interrupts, and sends each packet back that comes \
             out of the other end of an in-memory device; a client on core {} sends and reads, \
             beside a stream of packets that another client reads on any core",
            cores.0, cores.1, cores.0, cores.1
        ),
        ..Outcome::default()
    };
    let mut figure = Figure::new(
        "threads",
        "A packet by the number of threads that send",
        Axis::linear("threads", ""),
        Axis::log("a packet, all threads together", "ns"),
    );
    for (device, calls) in DEVICES {
        let mut curves = [Vec::new(), Vec::new()];
        for threads in [1, 2, 3] {
            let packets: u64 = match (settings.quick, calls) {
                (true, true) => 20_000,
                (true, false) => 50_000,
                (false, true) => 200_000,
                (false, false) => 500_000,
            };
            let case = Case { pairs: settings.pairs(), cores, calls, threads, packets };
            let pairs = case.measure(device, &mut outcome)?;
            for (curve, values) in curves.iter_mut().zip([&pairs.ours, &pairs.base]) {
                curve.push([threads as f64, Summary::of(values).median]);
            }
        }
        for (who, curve) in ["optimistic", "mutex"].into_iter().zip(curves) {
            figure.series.push(Series::line(&format!("{who}, {device}"), curve));
        }
    }
    outcome.figures.push(figure);
    paths::measure(settings, cores, &mut outcome)?;
    Ok(outcome)
}

/// One comparison of the two.
struct Case {
    pairs: usize,
    cores: (usize, usize),
    /// `true` if the driver makes a system call per packet.
    calls: bool,
    threads: usize,
    packets: u64,
}

/// The counts of both, each per packet that the driver took.
#[derive(Default)]
struct Shares {
    left: Vec<f64>,
    inside: Vec<f64>,
    refused: Vec<f64>,
    /// Of the mutex: locks for which a thread waited, and how long, in nanoseconds.
    waited: Vec<f64>,
    waited_ns: Vec<f64>,
}

impl Case {
    fn all_packets(&self) -> u64 {
        self.threads as u64 * self.packets
    }

    /// Measures the time of a packet.
    fn race(&self) -> anyhow::Result<(Pairs, Shares)> {
        let Case { cores, threads, packets, .. } = *self;
        let (mut shares, mut of_mutex) = (Shares::default(), Shares::default());
        let pairs = Pairs::measure(
            self.pairs,
            || {
                let section = SharedDriver::section(self.calls)?;
                let took = race(cores, threads, packets, |_, packet| section.send(packet))?;
                let counts = section.settle(self.all_packets())?;
                let refused = section.refused.load(Ordering::Relaxed);
                shares.left.push(counts.left as f64 / counts.taken as f64);
                shares.inside.push(counts.entered as f64 / counts.taken as f64);
                shares.refused.push(refused as f64 / counts.taken as f64);
                Ok(took)
            },
            || {
                let mutex = SharedDriver::mutex(self.calls)?;
                let took = race(cores, threads, packets, |_, packet| mutex.send(packet))?;
                let counts = mutex.settle(self.all_packets())?;
                of_mutex.waited.push(counts.contended as f64 / counts.taken as f64);
                of_mutex.waited_ns.push(counts.blocked_ns as f64 / counts.taken as f64);
                Ok(took)
            },
        )?;
        let Shares { waited, waited_ns, .. } = of_mutex;
        Ok((pairs, Shares { waited, waited_ns, ..shares }))
    }

    /// Measures the duration of one call, in races of their own, because reading the clock costs
    /// time.
    fn kept(&self) -> anyhow::Result<Pairs> {
        let (cores, threads, packets) = (self.cores, self.threads, self.packets / 10);
        let mut kept = Pairs::default();
        for _ in 0..self.pairs {
            let section = SharedDriver::section(self.calls)?;
            kept.ours.push(kept_us(cores, threads, packets, &section)?);
            section.settle(threads as u64 * packets)?;
            kept.base.push(kept_us(cores, threads, packets, &SharedDriver::mutex(self.calls)?)?);
        }
        Ok(kept)
    }

    /// Measures the time of a packet beside a thread that resets the device. Also returns the
    /// numbers of resets of both sides.
    fn race_beside_resets(&self) -> anyhow::Result<(Pairs, [Vec<f64>; 2])> {
        let Case { cores, threads, packets, .. } = *self;
        let (mut resets, mut locked_resets) = (Vec::new(), Vec::new());
        let pairs = Pairs::measure(
            self.pairs,
            || {
                let section = SharedDriver::section(self.calls)?;
                let took = beside_resets(&section, || {
                    race(cores, threads, packets, |_, packet| section.send(packet))
                })?;
                resets.push(section.settle(self.all_packets())?.resets as f64);
                Ok(took)
            },
            || {
                let mutex = SharedDriver::mutex(self.calls)?;
                let took = beside_resets(&mutex, || {
                    race(cores, threads, packets, |_, packet| mutex.send(packet))
                })?;
                locked_resets.push(mutex.settle(self.all_packets())?.resets as f64);
                Ok(took)
            },
        )?;
        Ok((pairs, [resets, locked_resets]))
    }

    /// Measures all, and adds the rows. Returns the time of a packet.
    fn measure(&self, device: &str, outcome: &mut Outcome) -> anyhow::Result<Pairs> {
        let (pairs, shares) = self.race()?;
        let kept = self.kept()?;
        let (beside, [resets, locked_resets]) = self.race_beside_resets()?;
        let parameters = [("threads", self.threads as f64)];
        let name = |what: &str| format!("{what}, {device}");
        for (what, pairs) in
            [("to a mutex, speed", &pairs), ("to a mutex, both beside resets, speed", &beside)]
        {
            let speed: Vec<f64> = pairs.ratios().iter().map(|ratio| 1.0 / ratio).collect();
            outcome.rows.push(Row::new(&name(what), &parameters, "ratio", &speed));
        }
        let rows = [
            ("a packet beside resets, optimistic", "ns", &beside.ours),
            ("a packet beside resets, mutex", "ns", &beside.base),
            ("resets, optimistic", "a run", &resets),
            ("resets, mutex", "a run", &locked_resets),
            ("a packet, optimistic", "ns", &pairs.ours),
            ("a packet, mutex", "ns", &pairs.base),
            ("left for another", "of all", &shares.left),
            ("times inside", "a packet", &shares.inside),
            ("refused for want of room", "a packet", &shares.refused),
            ("waits for the mutex", "a packet", &shares.waited),
            ("time blocked by the mutex", "ns a packet", &shares.waited_ns),
            ("999 of 1000 calls are over within, optimistic", "us", &kept.ours),
            ("999 of 1000 calls are over within, mutex", "us", &kept.base),
        ];
        for (what, unit, values) in rows {
            outcome.context.push(Row::new(&name(what), &parameters, unit, values));
        }
        Ok(pairs)
    }
}

/// The time between two resets.
const RESET_EVERY: Duration = Duration::from_millis(1);

/// Runs `run` while a further thread resets the device, at least once.
fn beside_resets<T>(
    shared: &SharedDriver,
    run: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let resetting = scope.spawn(|| {
            loop {
                shared.reset();
                if over.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(RESET_EVERY);
            }
        });
        let outcome = run();
        over.store(true, Ordering::Relaxed);
        let joined = resetting.join();
        joined.map_err(|_| anyhow::anyhow!("the thread that resets failed"))?;
        outcome
    })
}

/// A driver with either of the two.
struct SharedDriver {
    driver: Embedded,
    refused: AtomicU64,
}

impl SharedDriver {
    fn new(write: Protection, calls: bool) -> anyhow::Result<SharedDriver> {
        let config = Config { write, ..Config::default() };
        let driver = Embedded::new(Sink::boxed(calls)?, config)?;
        Ok(SharedDriver { driver, refused: AtomicU64::new(0) })
    }

    fn section(calls: bool) -> anyhow::Result<SharedDriver> {
        SharedDriver::new(Protection::Optimistic, calls)
    }

    fn mutex(calls: bool) -> anyhow::Result<SharedDriver> {
        SharedDriver::new(Protection::Mutex, calls)
    }

    fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        let sent = self.driver.send(packet);
        if sent.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    /// Resets the device from the control side.
    fn reset(&self) {
        self.driver.reset();
    }

    fn settle(&self, sent: u64) -> anyhow::Result<Counts> {
        while self.driver.drive() != Some(0) {}
        let counts = self.driver.counts().context("a thread is still inside")?;
        ensure!(counts.taken == sent, "{} of {sent} packets were sent", counts.taken);
        ensure!(counts.direct + counts.left == sent, "{counts:?}");
        Ok(counts)
    }
}

/// The part of all calls that decides how long a call keeps a thread: even a quick run has some
/// calls that take longer.
const KEPT: f64 = 0.999;

/// Returns the microseconds within which [`KEPT`] of the calls of all threads were over.
fn kept_us(
    cores: (usize, usize),
    threads: usize,
    packets: u64,
    shared: &SharedDriver,
) -> anyhow::Result<f64> {
    // One per thread, so that no thread waits for another one's.
    let times = (0..threads).map(|_| Ok(Mutex::new(Latency::new()?)));
    let times = times.collect::<anyhow::Result<Vec<_>>>()?;
    run(cores, threads, packets, |thread, packet| {
        let start = Instant::now();
        let sent = shared.send(packet);
        let took = start.elapsed();
        times[thread].lock().unwrap_or_else(std::sync::PoisonError::into_inner).record(took);
        sent
    })?;
    let mut all = Latency::new()?;
    for one in times {
        all.add(&one.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))?;
    }
    Ok(all.quantile_us(KEPT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_send_every_packet() {
        if towpath_testkit::cores().unwrap().len() < 2 {
            println!("SKIP both_send_every_packet: one core; two threads are pinned to two");
            return;
        }
        let cores = two_cores().unwrap();
        for (_, calls) in DEVICES {
            for threads in [1, 3] {
                let section = SharedDriver::section(calls).unwrap();
                race(cores, threads, 2_000, |_, packet| section.send(packet)).unwrap();
                let counts = section.settle(threads as u64 * 2_000).unwrap();
                assert!(threads > 1 || counts.left == 0 && counts.entered > 2_000);
                let locked = SharedDriver::mutex(calls).unwrap();
                race(cores, threads, 2_000, |_, packet| locked.send(packet)).unwrap();
                locked.settle(threads as u64 * 2_000).unwrap();
            }
        }
    }

    #[test]
    fn both_send_every_packet_beside_resets() {
        if towpath_testkit::cores().unwrap().len() < 2 {
            println!(
                "SKIP both_send_every_packet_beside_resets: one core; two threads are pinned to two"
            );
            return;
        }
        let cores = two_cores().unwrap();
        for (_, calls) in DEVICES {
            let section = SharedDriver::section(calls).unwrap();
            beside_resets(&section, || race(cores, 3, 2_000, |_, packet| section.send(packet)))
                .unwrap();
            assert!(section.settle(6_000).unwrap().resets > 0);
            let locked = SharedDriver::mutex(calls).unwrap();
            beside_resets(&locked, || race(cores, 3, 2_000, |_, packet| locked.send(packet)))
                .unwrap();
            assert!(locked.settle(6_000).unwrap().resets > 0);
        }
    }
}
