//! Servers that hang: an engine that uses processor time and finishes no poll iteration.
//!
//! An engine that sleeps, or that gets no processor time, does not hang.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::process::Keeper;

/// The pause between two checks.
const PAUSE: Duration = Duration::from_millis(500);
/// The processor time without a finished poll iteration after which an engine hangs, in the clock
/// ticks of `/proc` (`USER_HZ`, 100 in a second on every architecture that Towpath runs on). The longest
/// iteration of an engine takes milliseconds. With the pauses, a hang is found within two seconds.
const MOST_TICKS: u64 = 80;

/// An engine at an earlier check.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    iteration: u64,
    /// The processor time of the thread when it finished the iteration before, or later.
    ticks: u64,
}

/// A watch on the engines of one server.
#[derive(Debug)]
pub(super) struct HangWatch {
    process: Pid,
    next: Instant,
    seen: Vec<Seen>,
}

impl HangWatch {
    pub(super) fn new(process: Pid) -> HangWatch {
        HangWatch { process, next: Instant::now() + PAUSE, seen: Vec::new() }
    }

    /// Returns the time of the next check; `None` while the server does not serve.
    pub(super) fn next(&self, keeper: &Keeper) -> Option<Instant> {
        (keeper.is_ready && keeper.positions.is_some()).then_some(self.next)
    }

    /// Checks the engines, if it is time. Returns the number of one that hangs.
    pub(super) fn find(&mut self, keeper: &Keeper) -> Option<usize> {
        let now = Instant::now();
        let positions = keeper.positions.as_ref().filter(|_| keeper.is_ready)?;
        if now < self.next {
            return None;
        }
        self.next = now + PAUSE;
        let process = self.process;
        let mut hangs = None;
        for (line, place) in positions.engines().enumerate() {
            if line == self.seen.len() {
                // No iteration has this number, so the first check only records the current one.
                self.seen.push(Seen { iteration: u64::MAX, ticks: 0 });
            }
            let seen = &mut self.seen[line];
            let Some(ticks) = ticks_of(process, place.thread) else { continue };
            if place.iteration != seen.iteration {
                *seen = Seen { iteration: place.iteration, ticks };
            }
            if ticks.saturating_sub(seen.ticks) >= MOST_TICKS {
                hangs = Some(line);
            }
        }
        hangs
    }
}

/// Returns the processor time of a thread; `None` if the kernel does not say (proc(5), `hidepid`).
fn ticks_of(process: Pid, thread: u64) -> Option<u64> {
    let process = process.as_raw_nonzero();
    ticks_in(&fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).ok()?)
}

/// Returns the processor time in a line of proc_pid_stat(5): `utime` and `stime`, the 14th and the
/// 15th field. The second one, the name in brackets, may have spaces and brackets itself.
fn ticks_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_of_a_thread() {
        let line = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 30 12 13 14 15";
        assert_eq!(ticks_in(line), Some(42));
        assert_eq!(ticks_in("7 (a) R 1"), None);
        assert_eq!(ticks_in(""), None);
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        let start = Instant::now();
        // The kernel accounts every few milliseconds.
        while ticks_of(rustix::process::getpid(), thread).unwrap() == 0 {
            assert!(start.elapsed() < Duration::from_secs(60));
        }
        assert_eq!(ticks_of(rustix::process::getpid(), u64::MAX), None);
    }
}
