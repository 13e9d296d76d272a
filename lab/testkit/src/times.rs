//! The CPU time of a process and the number of its wake-ups.
//!
//! Unsafe lives here for the CPU clocks of other processes and threads, which rustix does not have.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;
use std::time::Duration;

/// The most threads of a process that are read.
const MAX_THREADS: usize = 4096;

/// The most entries of `/proc` that are read: as many as Linux has process numbers.
const MAX_PROCESSES: usize = 1 << 22;

/// The scheduler's account of a thread.
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
    /// How often it got a core: after a wake-up or a preemption.
    pub timeslices: u64,
    /// How often it went to sleep by itself.
    pub voluntary_switches: u64,
    /// How often it was preempted.
    pub involuntary_switches: u64,
}

/// The scheduler's account of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessTimes {
    /// Time on a core of all its threads, ended ones included, exact to the nanosecond.
    pub cpu: Duration,
    /// Its living threads.
    pub threads: Vec<ThreadTimes>,
}

impl ProcessTimes {
    /// Reads the account of a process, by its number.
    ///
    /// # Errors
    /// When there is no such process, or `/proc` is not mounted.
    pub fn of(pid: u32) -> io::Result<ProcessTimes> {
        let mut threads = Vec::new();
        for tid in thread_numbers(pid)? {
            match ThreadTimes::of(pid, tid) {
                Ok(times) => threads.push(times),
                // It ended meanwhile: no such file, or no such process.
                Err(error) if gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(ProcessTimes { cpu: process_cpu_time(pid)?, threads })
    }

    /// Returns how often living threads went to sleep by themselves.
    #[must_use]
    pub fn voluntary_switches(&self) -> u64 {
        self.threads.iter().map(|thread| thread.voluntary_switches).sum()
    }

    /// Returns how often living threads were preempted.
    #[must_use]
    pub fn involuntary_switches(&self) -> u64 {
        self.threads.iter().map(|thread| thread.involuntary_switches).sum()
    }
}

impl ThreadTimes {
    /// Reads the account of a thread, by its process' number and its own.
    ///
    /// # Errors
    /// When there is no such thread, or the kernel keeps no such account.
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

/// Lists the threads of a process. If a thread ends while the kernel lists them, the list may lack others, so the
/// function lists them until two lists are equal.
fn thread_numbers(pid: u32) -> io::Result<Vec<u32>> {
    const TRIES: usize = 100;
    let list = || -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task"))?.take(MAX_THREADS) {
            numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
        }
        Ok(numbers)
    };
    let mut last = list()?;
    for _ in 0..TRIES {
        let next = list()?;
        if next == last {
            break;
        }
        last = next;
    }
    Ok(last)
}

/// The processes that take part in an experiment, and the kernel's threads that process packets for
/// all (`ksoftirqd`), where they are visible.
#[derive(Debug, Clone)]
pub struct Participants {
    processes: Vec<u32>,
    kernel: Vec<u32>,
}

/// The participants' usage, as a difference between two moments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a core.
    pub cpu: Duration,
    /// How often threads of the processes went to sleep by themselves, and so were woken.
    pub sleeps: u64,
    /// How often they were preempted.
    pub preempted: u64,
}

impl Usage {
    /// Returns the difference from an earlier usage.
    #[must_use]
    pub fn since(&self, before: &Usage) -> Usage {
        Usage {
            cpu: self.cpu.saturating_sub(before.cpu),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            preempted: self.preempted.saturating_sub(before.preempted),
        }
    }

    /// Returns how often threads were switched.
    #[must_use]
    pub fn switches(&self) -> u64 {
        self.sleeps + self.preempted
    }
}

/// The participants' usage up to a moment, thread by thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moment {
    cpu: Duration,
    /// By process and thread: how often it went to sleep by itself, and was preempted.
    threads: BTreeMap<(u32, u32), [u64; 2]>,
}

impl Moment {
    /// Returns the usage from this moment to a later one. Switches are those of the threads that
    /// live at the later one: a thread that was just ending at the first takes nothing away.
    #[must_use]
    pub fn until(&self, later: &Moment) -> Usage {
        let mut usage = Usage { cpu: later.cpu.saturating_sub(self.cpu), ..Usage::default() };
        for (thread, [sleeps, preempted]) in &later.threads {
            let [slept, were_put] = self.threads.get(thread).copied().unwrap_or_default();
            // A number that now belongs to another thread counts from zero again.
            usage.sleeps += sleeps.saturating_sub(slept);
            usage.preempted += preempted.saturating_sub(were_put);
        }
        usage
    }
}

impl Participants {
    /// Creates the participants from these processes, each named once.
    #[must_use]
    pub fn new(processes: &[u32]) -> Participants {
        let mut processes = processes.to_vec();
        processes.sort_unstable();
        processes.dedup();
        Participants { processes, kernel: packet_threads() }
    }

    /// Returns their time on a core since their start, exact to the nanosecond.
    ///
    /// # Errors
    /// When a process has ended.
    pub fn cpu_time(&self) -> io::Result<Duration> {
        let mut sum = Duration::ZERO;
        for &pid in &self.processes {
            sum += process_cpu_time(pid)?;
        }
        for &pid in &self.kernel {
            // A kernel thread that stopped with its core has no time any more.
            sum += process_cpu_time(pid).unwrap_or_default();
        }
        Ok(sum)
    }

    /// Returns time and switches up to now, for comparison with another moment. A call costs some
    /// tens of microseconds.
    ///
    /// # Errors
    /// When a process has ended.
    pub fn moment(&self) -> io::Result<Moment> {
        let mut moment = Moment { cpu: self.cpu_time()?, ..Moment::default() };
        for &pid in &self.processes {
            for thread in ProcessTimes::of(pid)?.threads {
                let switches = [thread.voluntary_switches, thread.involuntary_switches];
                moment.threads.insert((pid, thread.tid), switches);
            }
        }
        Ok(moment)
    }
}

/// Returns the usage of the calling thread so far. A thread has to call this before it ends, since
/// the account ends with it.
///
/// # Errors
/// When `/proc` is not mounted, or the kernel keeps no such account.
pub fn this_thread_usage() -> io::Result<Usage> {
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let times = ThreadTimes::of(std::process::id(), tid.unsigned_abs())?;
    Ok(Usage {
        cpu: this_thread_cpu_time()?,
        sleeps: times.voluntary_switches,
        preempted: times.involuntary_switches,
    })
}

/// Returns the kernel's threads that process packets for all, one per core, as far as `/proc` shows
/// them: to a process in a namespace of process numbers it does not.
fn packet_threads() -> Vec<u32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let number = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let is_one = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        // Any process may have such a name; only the kernel's threads are kthreadd's children.
        field(&status, "Name:").is_some_and(|name| name.starts_with("ksoftirqd/"))
            && field(&status, "PPid:") == Some("2")
    };
    processes.take(MAX_PROCESSES).filter_map(number).filter(is_one).collect()
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn schedstat(text: &str) -> Option<(Duration, Duration, u64)> {
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    let (cpu, waited, slices) = (numbers.next()??, numbers.next()??, numbers.next()??);
    Some((Duration::from_nanos(cpu), Duration::from_nanos(waited), slices))
}

/// Returns the value of a line of a `status` file.
pub(crate) fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// Returns the time on a core of all threads of a process, exact to the nanosecond.
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

/// Returns the time on a core of the calling thread, exact to the nanosecond.
///
/// # Errors
/// None that Linux knows.
pub fn this_thread_cpu_time() -> io::Result<Duration> {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the time on a core of a thread of this process that has not been joined, exact to the
/// nanosecond.
pub(crate) fn thread_cpu_time<T>(thread: &JoinHandle<T>) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: a thread with a handle was not joined, so its number is its own; the clock's number
    // is written to a live variable.
    let error = unsafe { libc::pthread_getcpuclockid(thread.as_pthread_t(), &mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    clock_time(clock)
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
        let before = both.moment().unwrap();
        let start = this_thread_cpu_time().unwrap();
        while this_thread_cpu_time().unwrap() - start < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_millis(1));
        let came = before.until(&both.moment().unwrap());
        assert!(came.cpu >= Duration::from_millis(5), "{came:?}");
        assert!(came.sleeps >= 1 && came.switches() >= came.sleeps, "{came:?}");
        let ended = std::thread::spawn(|| {
            std::thread::sleep(Duration::from_millis(1));
            this_thread_usage().unwrap()
        });
        let ended = ended.join().unwrap();
        assert!(ended.sleeps >= 1, "{ended:?}");
        let kernels = packet_threads();
        assert!(kernels.iter().all(|&pid| process_cpu_time(pid).is_ok()), "{kernels:?}");
        assert!(Participants::new(&[u32::MAX]).cpu_time().is_err());
    }

    #[test]
    fn threads_that_have_gone_take_nothing_away() {
        let moment = |cpu_ms, threads: &[((u32, u32), [u64; 2])]| Moment {
            cpu: Duration::from_millis(cpu_ms),
            threads: threads.iter().copied().collect(),
        };
        let before = moment(5, &[((1, 1), [10, 1]), ((1, 2), [500, 50]), ((1, 3), [90, 0])]);
        // The second has ended, the third's number is another thread's, the fourth is new.
        let after = moment(9, &[((1, 1), [13, 2]), ((1, 3), [4, 0]), ((1, 4), [7, 1])]);
        let usage = before.until(&after);
        assert_eq!((usage.sleeps, usage.preempted), (3 + 7, 1 + 1));
        assert_eq!(usage.cpu, Duration::from_millis(4));
    }

    #[test]
    fn malformed_proc_files_are_refused() {
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
