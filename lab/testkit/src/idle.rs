//! Measures the idle time of each core with threads that take only idle time, as Hennrich does in
//! "User Level Device Driver am Beispiel von TCP".
//!
//! The scheduler's account of threads covers neither the time of interrupts nor all the time of
//! kernel threads and other processes. A thread of the class `SCHED_IDLE` on each core, which runs
//! only on an otherwise idle core, counts passes of a loop. The module first measures the passes
//! per second of an idle core, in the same run. Missing passes are time that other work took.
//!
//! The measurement changes its object: a counting core never halts, so threads on it wake sooner,
//! by a switch instead of a start. A measurement by this method needs a run of its own, and
//! compares only with others of the method. Where the kernel shares cores among groups of
//! processes, the class counts within a group: the measured process must belong to the counter's
//! group.
//!
//! Unsafe lives here for the scheduling class, which rustix does not have.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::times::thread_cpu_time;
use towpath_sandbox::pin;

/// Steps of one pass: some tens of nanoseconds, so that the cost of counting is small beside them.
const STEPS: u32 = 32;
/// Parts of a calibration. An unseen load does not take time from a core in all of them.
const PARTS: u32 = 20;
/// A part in which a thread had less of its core than this gives no reliable rate.
const LEAST_CPU: Duration = Duration::from_micros(500);

/// A core's count, on cache lines of its own: two counting threads must not slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Passes(AtomicU64);

#[derive(Debug)]
struct Counter {
    passes: Arc<Passes>,
    thread: JoinHandle<()>,
}

/// Counters of the idle time of some cores. Dropping it ends them.
#[derive(Debug)]
pub struct IdleCounters {
    counters: Vec<Counter>,
    over: Arc<AtomicBool>,
    /// Passes per second of each core while idle; zero until calibrated.
    full: Vec<f64>,
}

/// The counts at a moment.
#[derive(Debug, Clone)]
pub struct IdleMoment {
    at: Instant,
    passes: Vec<u64>,
}

impl IdleCounters {
    /// Starts one thread on each of these CPUs. Every user may do so.
    ///
    /// # Errors
    /// `EINVAL` when there is no such CPU, or it is not allowed; and when the system has no thread
    /// left.
    pub fn start(cpus: &[usize]) -> io::Result<IdleCounters> {
        let over = Arc::new(AtomicBool::new(false));
        let mut all = IdleCounters { counters: Vec::new(), over, full: vec![0.0; cpus.len()] };
        for &cpu in cpus {
            let passes = Arc::new(Passes::default());
            let (counted, over) = (Arc::clone(&passes), Arc::clone(&all.over));
            let (ready, is_ready) = std::sync::mpsc::channel();
            let thread =
                std::thread::Builder::new().name(format!("idle-{cpu}")).spawn(move || {
                    let started = pin(cpu).and_then(|()| take_what_is_left());
                    let counts = started.is_ok();
                    // The receiver is gone if the start of another counter failed.
                    let _ = ready.send(started);
                    if counts {
                        count(&counted.0, &over);
                    }
                })?;
            all.counters.push(Counter { passes, thread });
            let ended = || io::Error::other("a counting thread ended before it was ready");
            is_ready.recv().map_err(|_| ended())??;
        }
        Ok(all)
    }

    /// Measures how fast each idle core counts. The result is the fastest of twenty parts of
    /// `window`, by the counting thread's own time on its core, so that other work on the core for
    /// a while does no harm. Nothing that is to be measured may run meanwhile. A core that is never
    /// free for half a millisecond stays uncalibrated.
    ///
    /// # Errors
    /// None that Linux knows.
    pub fn calibrate(&mut self, window: Duration) -> io::Result<()> {
        let mut before = self.work()?;
        for _ in 0..PARTS {
            std::thread::sleep(window / PARTS);
            let now = self.work()?;
            for (full, (before, now)) in self.full.iter_mut().zip(before.iter().zip(&now)) {
                let cpu = now.1.saturating_sub(before.1);
                if cpu >= LEAST_CPU {
                    *full = full.max(now.0.wrapping_sub(before.0) as f64 / cpu.as_secs_f64());
                }
            }
            before = now;
        }
        Ok(())
    }

    /// Returns the passes of each core, and the CPU time of its thread.
    fn work(&self) -> io::Result<Vec<(u64, Duration)>> {
        let one = |counter: &Counter| {
            let cpu = thread_cpu_time(&counter.thread)?;
            Ok((counter.passes.0.load(Ordering::Relaxed), cpu))
        };
        self.counters.iter().map(one).collect()
    }

    /// Returns the present counts.
    #[must_use]
    pub fn moment(&self) -> IdleMoment {
        let load = |counter: &Counter| counter.passes.0.load(Ordering::Relaxed);
        IdleMoment { at: Instant::now(), passes: self.counters.iter().map(load).collect() }
    }

    /// Returns the idle share of each core since a moment, 0 to 1, in the order of the CPUs; a
    /// little above 1 on a core that has become faster. Not a number without a calibration.
    #[must_use]
    pub fn idle_since(&self, earlier: &IdleMoment) -> Vec<f64> {
        let now = self.moment();
        let took = now.at.duration_since(earlier.at).as_secs_f64();
        let both = earlier.passes.iter().zip(&now.passes);
        let part = |(&full, (before, now)): (&f64, (&u64, &u64))| {
            if full > 0.0 { now.wrapping_sub(*before) as f64 / took / full } else { f64::NAN }
        };
        self.full.iter().zip(both).map(part).collect()
    }
}

impl Drop for IdleCounters {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for counter in self.counters.drain(..) {
            // It cannot fail, and `drop` has no caller to tell.
            let _ = counter.thread.join();
        }
    }
}

fn count(passes: &AtomicU64, over: &AtomicBool) {
    let mut count = 0_u64;
    while !over.load(Ordering::Relaxed) {
        for step in 0..STEPS {
            std::hint::black_box(step);
        }
        count += 1;
        // One writer: no read-modify-write is needed.
        passes.store(count, Ordering::Relaxed);
    }
}

/// Puts the calling thread into the class that runs only on an idle core.
fn take_what_is_left() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, and the parameters live as long as the call.
    let outcome = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::this_thread_cpu_time;
    use towpath_sandbox::cores;

    fn burn(cpu: Duration) {
        let start = this_thread_cpu_time().unwrap();
        while this_thread_cpu_time().unwrap() - start < cpu {
            std::hint::spin_loop();
        }
    }

    /// Calibrates until each core was idle for a moment: other tests run beside this one.
    fn calibrated(cpus: &[usize]) -> IdleCounters {
        let mut idle = IdleCounters::start(cpus).unwrap();
        let start = Instant::now();
        while idle.full.iter().any(|full| *full <= 0.0) {
            assert!(start.elapsed() < Duration::from_secs(20), "no core is ever left alone");
            idle.calibrate(Duration::from_millis(100)).unwrap();
        }
        idle
    }

    #[test]
    fn counting_goes_on_while_others_sleep_and_ends() {
        let cpus: Vec<_> = cores().unwrap().iter().map(|core| core.cpu).collect();
        let idle = IdleCounters::start(&cpus).unwrap();
        let parts = idle.idle_since(&idle.moment());
        assert!(parts.iter().all(|part| part.is_nan()), "not calibrated yet: {parts:?}");
        let before = idle.moment();
        drop(idle);
        let idle = calibrated(&cpus);
        let over = Arc::clone(&idle.over);
        assert_eq!(Arc::strong_count(&over), cpus.len() + 2);
        let now = idle.moment();
        assert_eq!((before.passes.len(), now.passes.len()), (cpus.len(), cpus.len()));
        assert!(now.passes.iter().all(|passes| *passes > 0), "{now:?}");
        drop(idle);
        assert_eq!(Arc::strong_count(&over), 1, "no thread goes on");
    }

    #[test]
    fn a_computing_thread_reduces_idle_time_of_its_core() {
        let cpu = cores().unwrap()[0].cpu;
        let idle = calibrated(&[cpu]);
        std::thread::spawn(move || {
            pin(cpu).unwrap();
            let (before, start) = (idle.moment(), Instant::now());
            burn(Duration::from_millis(50));
            let left = idle.idle_since(&before)[0];
            // A thread of the ordinary class gets 1024 parts where this one gets 3.
            let most = 1.0 - 0.040 / start.elapsed().as_secs_f64();
            assert!(left <= most + 0.1, "{left} of the core was left, {most} at most");
        })
        .join()
        .unwrap();
        assert!(IdleCounters::start(&[usize::MAX]).is_err());
    }
}
