//! How much a process computed and how often it was woken.
//!
//! Unsafe lives here for the CPU clock of another process, which rustix does not have.

use std::fs;
use std::io;
use std::time::Duration;

/// The most threads of a process that are looked at.
const MAX_THREADS: usize = 4096;

/// What the scheduler knows of a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadTimes {
    /// The thread.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// Time on a core, in nanoseconds, exact while it sleeps; while it runs, as of the last tick.
    pub cpu: Duration,
    /// Time that it waited for a core.
    pub waited: Duration,
    /// How often it was given a core: how often it was woken, and put aside for others.
    pub timeslices: u64,
    /// How often it went to sleep by itself.
    pub voluntary_switches: u64,
    /// How often it was put aside.
    pub involuntary_switches: u64,
}

/// What the scheduler knows of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessTimes {
    /// Time on a core of all its threads, those that ended included, exact to the nanosecond.
    pub cpu: Duration,
    /// Those that live.
    pub threads: Vec<ThreadTimes>,
}

impl ProcessTimes {
    /// Of a process, by its number.
    ///
    /// # Errors
    /// When there is none such, or `/proc` is not mounted.
    pub fn of(pid: u32) -> io::Result<ProcessTimes> {
        let mut threads = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task"))?.take(MAX_THREADS) {
            let Some(tid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match ThreadTimes::of(pid, tid) {
                Ok(times) => threads.push(times),
                // It ended meanwhile: no such file, or no such process.
                Err(error) if gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ProcessTimes { cpu: process_cpu_time(pid)?, threads })
    }

    /// How often threads that live went to sleep by themselves.
    #[must_use]
    pub fn voluntary_switches(&self) -> u64 {
        self.threads.iter().map(|thread| thread.voluntary_switches).sum()
    }

    /// How often threads that live were put aside.
    #[must_use]
    pub fn involuntary_switches(&self) -> u64 {
        self.threads.iter().map(|thread| thread.involuntary_switches).sum()
    }
}

impl ThreadTimes {
    /// Of a thread, by its process' number and its own.
    ///
    /// # Errors
    /// When there is none such, or the kernel keeps no such account.
    pub fn of(pid: u32, tid: u32) -> io::Result<ThreadTimes> {
        let read = |file| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{file}"));
        let unreadable = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let (cpu, waited, timeslices) = schedstat(&read("schedstat")?)
            .ok_or_else(|| unreadable("schedstat holds other than three numbers"))?;
        let status = read("status")?;
        let number = |key: &str| -> io::Result<u64> {
            field(&status, key)
                .and_then(|value| value.parse().ok())
                .ok_or_else(|| unreadable("status holds no count of context switches"))
        };
        Ok(ThreadTimes {
            tid,
            name: field(&status, "Name:").unwrap_or_default().to_owned(),
            cpu,
            waited,
            timeslices,
            voluntary_switches: number("voluntary_ctxt_switches:")?,
            involuntary_switches: number("nonvoluntary_ctxt_switches:")?,
        })
    }
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn schedstat(text: &str) -> Option<(Duration, Duration, u64)> {
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    let (cpu, waited, slices) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some((Duration::from_nanos(cpu), Duration::from_nanos(waited), slices))
}

/// The value of a line of a `status` file.
pub(crate) fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// The time on a core of all threads of a process, exact to the nanosecond.
///
/// # Errors
/// When there is no such process.
pub fn process_cpu_time(pid: u32) -> io::Result<Duration> {
    let pid = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut clock = 0;
    // SAFETY: the clock's number is written to a live variable.
    let error = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    clock_time(clock)
}

/// The time on a core of the calling thread, exact to the nanosecond.
///
/// # Errors
/// None that Linux knows.
pub fn this_thread_cpu_time() -> io::Result<Duration> {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_time(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is written to a live variable.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A CPU clock starts at zero: neither part is negative.
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_files_are_not_believed() {
        assert_eq!(
            schedstat("7 8 9\n"),
            Some((Duration::from_nanos(7), Duration::from_nanos(8), 9))
        );
        for bad in ["", "1 2", "1 x 3", "-1 2 3"] {
            assert_eq!(schedstat(bad), None, "{bad:?}");
        }
        assert_eq!(field("Name:\ta b\nX:\t1\n", "Name:"), Some("a b"));
        assert_eq!(field("Name:\ta\n", "Uid:"), None);
    }
}
