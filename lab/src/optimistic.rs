//! One driver for several threads: an optimistic section against a mutex.
//!
//! Threads send packets through one device of their own process. With the optimistic section, a
//! thread that finds another one inside leaves its packet and goes on; with the mutex it waits.
//! Both drive the same driver with the same memory. One thread alone shows the cost of each without
//! contention.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use rustix::fs::{Mode, OFlags};
use towpath_device::{
    Armed, Capabilities, Completion, Counters, Device, DeviceError, DeviceQueue, Info, Kick,
    Limits, Packet, Received, SpaceId, Spaces,
};
use towpath_embedded::{Config, Driver, Embedded, SendError};

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
             packets and does nothing, one makes a system call per packet",
            cores.0, cores.1
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

/// The section's counts, each per packet that the driver took.
#[derive(Default)]
struct Shares {
    left: Vec<f64>,
    inside: Vec<f64>,
    refused: Vec<f64>,
}

impl Case {
    fn all_packets(&self) -> u64 {
        self.threads as u64 * self.packets
    }

    /// Measures the time of a packet.
    fn race(&self) -> anyhow::Result<(Pairs, Shares)> {
        let Case { cores, threads, packets, .. } = *self;
        let mut shares = Shares::default();
        let pairs = Pairs::measure(
            self.pairs,
            || {
                let section = Section::new(self.calls)?;
                let took = race(cores, threads, packets, |_, packet| section.send(packet))?;
                let counts = section.settle(self.all_packets())?;
                let refused = section.refused.load(Ordering::Relaxed);
                shares.left.push(counts.left as f64 / counts.taken as f64);
                shares.inside.push(counts.entered as f64 / counts.taken as f64);
                shares.refused.push(refused as f64 / counts.taken as f64);
                Ok(took)
            },
            || {
                let mutex = Locked::new(self.calls)?;
                let took = race(cores, threads, packets, |_, packet| mutex.send(packet))?;
                mutex.settle(self.all_packets())?;
                Ok(took)
            },
        )?;
        Ok((pairs, shares))
    }

    /// Measures the duration of one call, in races of their own, because reading the clock costs
    /// time.
    fn kept(&self) -> anyhow::Result<Pairs> {
        let (cores, threads, packets) = (self.cores, self.threads, self.packets / 10);
        let mut kept = Pairs::default();
        for _ in 0..self.pairs {
            let section = Section::new(self.calls)?;
            kept.ours.push(kept_us(cores, threads, packets, &section)?);
            section.settle(threads as u64 * packets)?;
            kept.base.push(kept_us(cores, threads, packets, &Locked::new(self.calls)?)?);
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
                let section = Section::new(self.calls)?;
                let took = beside_resets(&section, || {
                    race(cores, threads, packets, |_, packet| section.send(packet))
                })?;
                resets.push(section.settle(self.all_packets())?.resets as f64);
                Ok(took)
            },
            || {
                let mutex = Locked::new(self.calls)?;
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
            ("999 of 1000 calls are over within, optimistic", "us", &kept.ours),
            ("999 of 1000 calls are over within, mutex", "us", &kept.base),
        ];
        for (what, unit, values) in rows {
            outcome.context.push(Row::new(&name(what), &parameters, unit, values));
        }
        Ok(pairs)
    }
}

/// Either of the two.
trait Shared: Sync {
    /// Returns whether the driver took the packet.
    fn send(&self, packet: &[u8]) -> Result<(), SendError>;

    /// Resets the device from the control side.
    fn reset(&self);
}

/// The time between two resets.
const RESET_EVERY: Duration = Duration::from_millis(1);

/// Runs `run` while a further thread resets the device, at least once.
fn beside_resets<T>(
    shared: &impl Shared,
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

struct Section {
    driver: Embedded,
    refused: AtomicU64,
}

impl Section {
    fn new(calls: bool) -> anyhow::Result<Section> {
        let driver = Embedded::new(Sink::boxed(calls)?, Config::default())?;
        Ok(Section { driver, refused: AtomicU64::new(0) })
    }

    fn settle(&self, sent: u64) -> anyhow::Result<towpath_embedded::Counts> {
        while self.driver.drive() != Some(0) {}
        let counts = self.driver.counts().unwrap_or_default();
        ensure!(counts.taken == sent, "{} of {sent} packets were sent", counts.taken);
        ensure!(counts.direct + counts.left == sent, "{counts:?}");
        Ok(counts)
    }
}

impl Shared for Section {
    fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        let sent = self.driver.send(packet);
        if sent.is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }

    fn reset(&self) {
        self.driver.reset();
    }
}

struct Locked {
    driver: Mutex<Driver>,
}

impl Locked {
    fn new(calls: bool) -> anyhow::Result<Locked> {
        Ok(Locked { driver: Mutex::new(Driver::new(Sink::boxed(calls)?, Config::default())?) })
    }

    fn settle(self, sent: u64) -> anyhow::Result<towpath_embedded::Counts> {
        let driver = self.driver.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let counts = driver.counts();
        ensure!(counts.taken == sent, "{} of {sent} packets were sent", counts.taken);
        Ok(counts)
    }
}

impl Shared for Locked {
    fn send(&self, packet: &[u8]) -> Result<(), SendError> {
        let mut driver = self.driver.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        driver.send(packet)
    }

    fn reset(&self) {
        self.driver.lock().unwrap_or_else(std::sync::PoisonError::into_inner).reset();
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
    shared: &impl Shared,
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

/// A device that takes and completes everything at once.
struct Sink {
    info: Info,
    queue: Option<SinkQueue>,
}

struct SinkQueue {
    done: Vec<Completion>,
    null: Option<std::os::fd::OwnedFd>,
    counters: Counters,
}

impl Sink {
    fn boxed(calls: bool) -> anyhow::Result<Box<dyn Device>> {
        let null = calls.then(|| {
            rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
        });
        Ok(Box::new(Sink {
            info: Info {
                name: "sink".to_owned(),
                mac: [2, 0, 0, 0, 0, 1],
                mtu: 1500,
                queues: 1,
                limits: Limits::new(2048),
                rx_queue_packets: 0,
                can: Capabilities::default(),
            },
            queue: Some(SinkQueue {
                done: Vec::with_capacity(1024),
                null: null.transpose()?,
                counters: Counters::default(),
            }),
        }))
    }
}

impl Device for Sink {
    fn info(&self) -> &Info {
        &self.info
    }

    fn open_queue(
        &mut self,
        _: usize,
        _: &mut Spaces,
    ) -> Result<Box<dyn DeviceQueue>, DeviceError> {
        let failed = |cause| DeviceError::Failed {
            name: self.info.name.clone(),
            what: "opening a queue",
            cause,
        };
        let queue = self.queue.take().ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        Ok(Box::new(queue))
    }
}

impl DeviceQueue for SinkQueue {
    fn rx_fill(&mut self, _: &Spaces, _: SpaceId, _: &[u32]) -> usize {
        0
    }

    fn rx_poll(
        &mut self,
        _: &mut Spaces,
        _: &mut Vec<Received>,
        _: usize,
    ) -> Result<usize, DeviceError> {
        Ok(0)
    }

    fn tx_submit(
        &mut self,
        spaces: &mut Spaces,
        packets: &[Packet<'_>],
    ) -> Result<usize, DeviceError> {
        for packet in packets {
            let mut bytes = [0; FRAME_BYTES];
            for part in packet.parts {
                let len = (part.len as usize).min(FRAME_BYTES);
                if spaces.copy_out(part.space, part.offset, &mut bytes[..len]).is_err() {
                    self.counters.tx_dropped += 1;
                }
            }
            if let Some(null) = &self.null {
                let written = rustix::io::write(null, &bytes);
                written.map_err(|error| DeviceError::Failed {
                    name: "sink".to_owned(),
                    what: "writing",
                    cause: io::Error::from(error),
                })?;
            }
            self.counters.tx_packets += 1;
            self.done.push(Completion::sent(packet.token));
        }
        Ok(packets.len())
    }

    fn kick(&mut self, _: &mut Spaces, _: Kick) -> Result<(), DeviceError> {
        Ok(())
    }

    fn tx_complete(
        &mut self,
        out: &mut Vec<Completion>,
        budget: usize,
    ) -> Result<usize, DeviceError> {
        let count = self.done.len().min(budget);
        out.extend(self.done.drain(..count));
        Ok(count)
    }

    fn sleep_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&mut self, _: bool) -> Result<Armed, DeviceError> {
        Ok(Armed::Work)
    }

    fn reset(&mut self, _: &mut Vec<u32>) -> Result<(), DeviceError> {
        self.counters.resets += 1;
        Ok(())
    }

    fn counters(&self) -> Counters {
        self.counters
    }
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
                let section = Section::new(calls).unwrap();
                race(cores, threads, 2_000, |_, packet| section.send(packet)).unwrap();
                let counts = section.settle(threads as u64 * 2_000).unwrap();
                assert!(threads > 1 || counts.left == 0 && counts.entered > 2_000);
                let locked = Locked::new(calls).unwrap();
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
            let section = Section::new(calls).unwrap();
            beside_resets(&section, || race(cores, 3, 2_000, |_, packet| section.send(packet)))
                .unwrap();
            assert!(section.settle(6_000).unwrap().resets > 0);
            let locked = Locked::new(calls).unwrap();
            beside_resets(&locked, || race(cores, 3, 2_000, |_, packet| locked.send(packet)))
                .unwrap();
            assert!(locked.settle(6_000).unwrap().resets > 0);
        }
    }
}
