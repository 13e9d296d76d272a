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

/// The processes that take part in something, and the threads of the kernel that process packets
/// for everybody (`ksoftirqd`), where they can be seen.
#[derive(Debug, Clone)]
pub struct Participants {
    processes: Vec<u32>,
    kernel: Vec<u32>,
}

/// What participants came to, as a difference between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a core.
    pub cpu: Duration,
    /// How often threads of the processes went to sleep by themselves, and so were woken.
    pub sleeps: u64,
    /// How often they were put aside for others.
    pub put_aside: u64,
}

impl Usage {
    /// What came since.
    #[must_use]
    pub fn since(&self, before: &Usage) -> Usage {
        Usage {
            cpu: self.cpu.saturating_sub(before.cpu),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            put_aside: self.put_aside.saturating_sub(before.put_aside),
        }
    }

    /// How often threads were switched.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.sleeps + self.put_aside
    }
}

impl Participants {
    /// These processes, each named once.
    #[must_use]
    pub fn new(processes: &[u32]) -> Participants {
        let mut processes = processes.to_vec();
        processes.sort_unstable();
        processes.dedup();
        let named = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.starts_with("ksoftirqd/"))
        };
        // They are started at boot, before everything else.
        let kernel = (2..256).filter(named).collect();
        Participants { processes, kernel }
    }

    /// Time on a core since they were started. Of the processes it is exact; the kernel's threads
    /// are as of the last tick while they run.
    ///
    /// # Errors
    /// When a process has ended.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let mut sum = Duration::ZERO;
        for &pid in &self.processes {
            sum += process_cpu_time(pid)?;
        }
        for &pid in &self.kernel {
            let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
            sum += schedstat(&text).map_or(Duration::ZERO, |(cpu, _, _)| cpu);
        }
        Ok(sum)
    }

    /// Time and switches since they were started; of threads that have ended, their time alone: who
    /// counts switches looks before they end. Looking costs some tens of microseconds.
    ///
    /// # Errors
    /// When a process has ended.
    pub fn usage(&self) -> io::Result<Usage> {
        let mut usage = Usage { cpu: self.cpu_time()?, ..Usage::default() };
        for &pid in &self.processes {
            let times = ProcessTimes::of(pid)?;
            usage.sleeps += times.voluntary_switches();
            usage.put_aside += times.involuntary_switches();
        }
        Ok(usage)
    }
}

/// What the calling thread came to so far: to be asked by a thread before it ends, since nobody can
/// afterwards.
///
/// # Errors
/// When `/proc` is not mounted, or the kernel keeps no such account.
pub fn this_thread_usage() -> io::Result<Usage> {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let times = ThreadTimes::of(std::process::id(), tid.unsigned_abs())?;
    Ok(Usage {
        cpu: this_thread_cpu_time()?,
        sleeps: times.voluntary_switches,
        put_aside: times.involuntary_switches,
    })
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
    fn participants_are_summed() {
        let own = std::process::id();
        let both = Participants::new(&[own, own]);
        let before = both.usage().unwrap();
        let start = this_thread_cpu_time().unwrap();
        while this_thread_cpu_time().unwrap() - start < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_millis(1));
        let came = both.usage().unwrap().since(&before);
        assert!(came.cpu >= Duration::from_millis(5), "{came:?}");
        assert!(came.sleeps >= 1 && came.switches() >= came.sleeps, "{came:?}");
        let ended = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(1));
            this_thread_usage().unwrap()
        });
        let ended = ended.join().unwrap();
        assert!(ended.sleeps >= 1, "{ended:?}");
        assert!(Participants::new(&[u32::MAX]).cpu_time().is_err());
    }

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
