//! What a wake-up costs on this machine.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// How many times there and back, at most.
const ROUNDS: usize = 200;
/// How many ticks, and of which length.
const TICKS: usize = 40;
const TICK: Duration = Duration::from_micros(100);
/// How long each measurement may take.
const LIMIT: Duration = Duration::from_millis(30);
/// How long a thread waits for its partner before it takes it to be gone.
const PARTNER: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What a wake-up costs, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// From ringing a thread that sleeps until it runs: the median.
    pub wake_up: u64,
    /// Processor time of both sides for it.
    pub wake_up_cpu: u64,
    /// Processor time of a sleep that a timer ends.
    pub tick_cpu: u64,
    /// How much too late a timer wakes: the 90th percentile.
    pub tick_late: u64,
}

impl Costs {
    /// Of a machine that has not been measured: what was seen on virtual ones.
    pub const USUAL: Costs =
        Costs { wake_up: 34_000, wake_up_cpu: 9_000, tick_cpu: 5_000, tick_late: 60_000 };

    /// Of this machine: measured when first asked for, within a tenth of a second. What cannot be
    /// measured is taken to be as usual.
    pub fn of_this_machine() -> Costs {
        static MEASURED: OnceLock<Costs> = OnceLock::new();
        *MEASURED.get_or_init(|| Costs::measure().unwrap_or(Costs::USUAL))
    }

    /// Measures.
    ///
    /// # Errors
    /// When threads or descriptors are not to be had.
    pub fn measure() -> io::Result<Costs> {
        let (wake_up, wake_up_cpu) = rung(two_processors())?;
        let (tick_cpu, tick_late) = ticks();
        Ok(Costs { wake_up, wake_up_cpu, tick_cpu, tick_late })
    }

    /// The shortest time that sleeping holds: what is shorter is over when the sleeper is awake.
    #[must_use]
    pub fn least_sleep(&self) -> u64 {
        self.wake_up.clamp(10_000, 100_000)
    }
}

/// Processor time of this thread.
fn cpu() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn at(mut samples: Vec<u64>, per_cent: usize) -> u64 {
    samples.sort_unstable();
    let place = samples.len() * per_cent / 100;
    samples.get(place.min(samples.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Two processors that this thread may run on: side and side are not on one.
fn two_processors() -> Option<[CpuSet; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut processors = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).map(|cpu| {
        let mut one = CpuSet::new();
        one.set(cpu);
        one
    });
    Some([processors.next()?, processors.next()?])
}

/// Wake-ups between two threads that sleep on an eventfd each until the other rings it.
fn rung(processors: Option<[CpuSet; 2]>) -> io::Result<(u64, u64)> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let (call, answer) = (eventfd(0, flags)?, eventfd(0, flags)?);
    // Where it is not allowed, they run where the scheduler has them.
    let place = |side: usize| {
        if let Some(processors) = &processors {
            let _ = sched_setaffinity(None, &processors[side]);
        }
        cpu()
    };
    let ended = || io::Error::other("a measuring thread ended early");
    std::thread::scope(|scope| {
        let partner = std::thread::Builder::new().spawn_scoped(scope, || {
            let start = place(0);
            // Ends when nobody calls any more.
            while wait(&call)? {
                ring(&answer)?;
            }
            io::Result::Ok(cpu() - start)
        })?;
        let caller = std::thread::Builder::new().spawn_scoped(scope, || {
            let mut samples = Vec::with_capacity(ROUNDS);
            let (start, limit) = (place(1), Instant::now() + LIMIT);
            while samples.len() < ROUNDS && Instant::now() < limit {
                let start = Instant::now();
                ring(&call)?;
                if !wait(&answer)? {
                    break;
                }
                samples.push(start.elapsed().as_nanos() as u64 / 2);
            }
            let own = cpu() - start;
            rustix::io::write(&call, &END.to_ne_bytes())?;
            io::Result::Ok((samples, own))
        });
        let caller = match caller {
            Ok(caller) => caller.join(),
            Err(error) => {
                rustix::io::write(&call, &END.to_ne_bytes())?;
                return Err(error);
            }
        };
        let theirs = partner.join().unwrap_or_else(|_| Err(ended()))?;
        let (samples, own) = caller.unwrap_or_else(|_| Err(ended()))?;
        // There and back are two wake-ups.
        let wake_ups = 2 * samples.len().max(1) as u64;
        Ok((at(samples, 50), (own + theirs) / wake_ups))
    })
}

/// Rung with this, the partner ends.
const END: u64 = u64::MAX - 2;

fn ring(bell: &OwnedFd) -> io::Result<()> {
    rustix::io::write(bell, &1_u64.to_ne_bytes())?;
    Ok(())
}

/// Sleeps until rung. False when told to end, or when the other side is gone.
fn wait(bell: &OwnedFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(bell, PollFlags::IN)];
    if poll(&mut polled, Some(&PARTNER))? == 0 {
        return Ok(false);
    }
    let mut count = [0; 8];
    rustix::io::read(bell, &mut count)?;
    Ok(u64::from_ne_bytes(count) < END)
}

/// Sleeps that a timer ends.
fn ticks() -> (u64, u64) {
    let mut late = Vec::with_capacity(TICKS);
    let (start, limit) = (cpu(), Instant::now() + LIMIT);
    while late.len() < TICKS && Instant::now() < limit {
        let start = Instant::now();
        let timeout = Timespec { tv_sec: 0, tv_nsec: TICK.as_nanos() as i64 };
        let _ = poll(&mut [], Some(&timeout));
        late.push(start.elapsed().saturating_sub(TICK).as_nanos() as u64);
    }
    let cost = (cpu() - start) / late.len().max(1) as u64;
    (cost, at(late, 90))
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
        assert_eq!(at(Vec::new(), 50), 0);
    }
}
