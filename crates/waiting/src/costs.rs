//! The cost of a wake-up on this machine.

use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::poll;
use rustix::thread::{CpuSet, sched_getaffinity};
use rustix::time::Timespec;

use crate::wake_ups::{cpu, round_trips};

/// The maximum number of round trips.
const ROUNDS: usize = 200;
/// The maximum number of ticks, and the length of each.
const TICKS: usize = 40;
const TICK: Duration = Duration::from_micros(100);
/// The longest time of each measurement.
const LIMIT: Duration = Duration::from_millis(30);

/// The costs of a wake-up, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The time from the notification of a sleeping thread until it runs: the median.
    pub wake_up: u64,
    /// Processor time of both sides for a wake-up.
    pub wake_up_cpu: u64,
    /// Processor time of a sleep that a timer ends.
    pub tick_cpu: u64,
    /// The delay of a timer's wake-up: the 90th percentile.
    pub tick_late: u64,
}

/// The costs of this machine, once they are known.
static MEASURED: OnceLock<Costs> = OnceLock::new();

impl Costs {
    /// The default costs of a machine without measurements, typical of virtual machines.
    pub const USUAL: Costs =
        Costs { wake_up: 34_000, wake_up_cpu: 9_000, tick_cpu: 5_000, tick_late: 60_000 };

    /// Returns the costs of this machine. The first call measures them within a tenth of a second,
    /// and takes [`Costs::USUAL`] if the measurement fails.
    pub fn of_this_machine() -> Costs {
        *MEASURED.get_or_init(|| Costs::measure().unwrap_or(Costs::USUAL))
    }

    /// Takes these costs for this machine's, unless they are known. A successor uses its predecessor's
    /// costs, which saves the measurement.
    pub fn assume(self) {
        let _ = MEASURED.set(self);
    }

    /// Measures the costs.
    ///
    /// # Errors
    /// When the system has no threads or descriptors left, or no measurement ended in time.
    pub fn measure() -> io::Result<Costs> {
        Costs::within(ROUNDS, LIMIT)
    }

    fn within(rounds: usize, limit: Duration) -> io::Result<Costs> {
        let blocked = round_trips(two_processors(), rounds, limit)?;
        if blocked.times.is_empty() {
            return Err(unseen());
        }
        // A round trip is two wake-ups.
        let wake_ups = 2 * blocked.times.len() as u64;
        let wake_up_cpu = blocked.cpu.as_nanos() as u64 / wake_ups;
        let halves = blocked.times.iter().map(|time| time.as_nanos() as u64 / 2).collect();
        let wake_up = at(halves, 50);
        let (tick_cpu, tick_late) = ticks(limit)?;
        Ok(Costs { wake_up, wake_up_cpu, tick_cpu, tick_late })
    }

    /// Returns the shortest useful sleep, in nanoseconds: a shorter one ends before the sleeper is
    /// awake.
    #[must_use]
    pub fn least_sleep(&self) -> u64 {
        self.wake_up.clamp(10_000, 100_000)
    }
}

/// Returns the value below which `per_cent` percent of the samples lie.
fn at(mut samples: Vec<u64>, per_cent: usize) -> u64 {
    samples.sort_unstable();
    samples[samples.len() * per_cent / 100]
}

/// Returns two processors that this thread may run on, one for each side.
fn two_processors() -> Option<[usize; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    Some([processors.next()?, processors.next()?])
}

/// Measures sleeps that a timer ends: their processor time, and the delay's 90th percentile.
fn ticks(limit: Duration) -> io::Result<(u64, u64)> {
    let mut late = Vec::with_capacity(TICKS);
    let (start, limit) = (cpu(), Instant::now() + limit);
    while late.len() < TICKS && Instant::now() < limit {
        let start = Instant::now();
        let timeout = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        let _ = poll(&mut [], Some(&timeout));
        late.push(start.elapsed().saturating_sub(TICK).as_nanos() as u64);
    }
    if late.is_empty() {
        return Err(unseen());
    }
    let cost = (cpu() - start) / late.len() as u64;
    Ok((cost, at(late, 90)))
}

fn unseen() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no wake-up came in time to be measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_measured_once_and_in_time() {
        let start = Instant::now();
        let costs = Costs::of_this_machine();
        assert!(start.elapsed() < Duration::from_secs(5));
        println!("{costs:?}");
        assert!(costs.wake_up > 0 && costs.wake_up_cpu > 0 && costs.tick_cpu > 0);
        assert_eq!(costs, Costs::of_this_machine());
    }

    #[test]
    fn costs_without_one_sample_are_an_error() {
        // The limits allow no round trip and no tick, and zeros are not costs.
        for (rounds, limit) in [(0, LIMIT), (ROUNDS, Duration::ZERO)] {
            let error = Costs::within(rounds, limit).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        }
        assert!(ticks(Duration::ZERO).is_err() && ticks(LIMIT).is_ok());
    }
}
