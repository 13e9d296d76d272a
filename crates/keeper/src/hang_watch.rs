//! Finds engines that hang: that use processor time, or sleep, and finish no poll iteration.
//!
//! An engine that sleeps between two poll iterations does not hang. Nor does one that gets no processor
//! time, waits for a page of memory, is stopped, or dumps its core.

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
/// Checks in a row that find the thread asleep in the same poll iteration, after which it hangs: five
/// seconds, because a reset of the device may wait for the keeper.
const MOST_ASLEEP: u32 = 11;

/// An engine at an earlier check.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    iteration: u64,
    /// The processor time of the thread when it finished the iteration before, or later.
    ticks: u64,
    /// Checks in a row that found the thread asleep in this iteration.
    asleep: u32,
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
        if dumps_core(self.process) {
            return None;
        }
        let process = self.process;
        let mut hangs = None;
        for (line, place) in positions.engines().enumerate() {
            if line == self.seen.len() {
                // No iteration has this number, so the first check only records the current one.
                self.seen.push(Seen { iteration: u64::MAX, ticks: 0, asleep: 0 });
            }
            let seen = &mut self.seen[line];
            let Some(Thread { ticks, is_asleep }) = thread(process, place.thread) else { continue };
            if place.iteration != seen.iteration {
                *seen = Seen { iteration: place.iteration, ticks, asleep: 0 };
            }
            let is_asleep = is_asleep && place.phase.is_of_an_iteration();
            seen.asleep = if is_asleep { seen.asleep + 1 } else { 0 };
            if ticks.saturating_sub(seen.ticks) >= MOST_TICKS || seen.asleep >= MOST_ASLEEP {
                hangs = Some(line);
            }
        }
        hangs
    }
}

/// A thread, as the kernel shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    /// Its processor time.
    ticks: u64,
    /// `true` if it sleeps, and a signal could wake it.
    is_asleep: bool,
}

/// Returns `true` if a process dumps its core, during which its threads sleep.
fn dumps_core(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero()));
    status.is_ok_and(|status| status.lines().any(|line| line == "CoreDumping:\t1"))
}

/// Reads the state of a thread; `None` if the kernel does not show it (proc(5), `hidepid`).
fn thread(process: Pid, thread: u64) -> Option<Thread> {
    let process = process.as_raw_nonzero();
    thread_in(&fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).ok()?)
}

/// Reads the state of a thread in a line of proc_pid_stat(5): `state`, `utime` and `stime`, the third, the 14th
/// and the 15th field. The second one, the name in brackets, may have spaces and brackets itself.
fn thread_in(stat: &str) -> Option<Thread> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let is_asleep = fields.next()? == "S";
    let mut fields = fields.skip(10);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(Thread { ticks: next()? + next()?, is_asleep })
}

#[cfg(test)]
mod tests {
    use rustix::process::getpid;

    use super::*;

    #[test]
    fn the_processor_time_and_the_state_of_a_thread() {
        let line = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 30 12 13 14 15";
        assert_eq!(thread_in(line), Some(Thread { ticks: 42, is_asleep: false }));
        let line = line.replace(" R ", " S ");
        assert_eq!(thread_in(&line), Some(Thread { ticks: 42, is_asleep: true }));
        assert_eq!(thread_in("7 (a) R 1"), None);
        assert_eq!(thread_in(""), None);
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        // Until the kernel has counted a tick.
        while thread(getpid(), own).unwrap().ticks == 0 {
            std::hint::black_box(own);
        }
        assert_eq!(thread(getpid(), u64::MAX), None);
    }
}
