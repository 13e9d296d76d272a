//! Counts the system calls of a thread of another process, from outside (`ptrace(2)`).
//!
//! Unsafe lives here because `ptrace` and `waitid` are known to libc alone.
//!
//! The watch slows the thread down and changes one thing: to begin and to end the watch, the
//! counter stops the thread for a moment. A call such as `epoll_wait` in which the thread sleeps
//! may then return `EINTR` (`signal(7)`). Meanwhile no other thread of the watching process may
//! wait for the watched one: it would take a stop for the end.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use towpath_sandbox::{Error, Unavailable};

/// The time between two checks of an idle thread: a watch may last that much longer than asked for.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The time after its last stop during which the watch checks a thread without sleeping.
const SPIN: Duration = Duration::from_micros(100);

/// The time that a thread has to stop. One in an uninterruptible sleep does not.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// `PTRACE_EVENT_STOP` of `linux/ptrace.h`.
const EVENT_STOP: i32 = 128;

/// The system calls of a thread, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyscallCount {
    /// How often each call began. The call in which the thread slept at the start does not count,
    /// unless the stop restarted it.
    pub calls: BTreeMap<u64, u64>,
    /// The length of the watch.
    pub watched: Duration,
    /// The reason why the watch ended.
    pub ended: WatchEnd,
}

/// The reason why a watch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchEnd {
    /// The caller stopped it.
    Stopped,
    /// Its time was over.
    TimeOver,
    /// The thread had ended.
    Exited,
}

impl SyscallCount {
    /// Watches a thread for some time.
    ///
    /// # Errors
    /// As [`SyscallWatch::start`].
    pub fn of(tid: u32, time: Duration) -> Result<SyscallCount, Error> {
        SyscallWatch::start(tid, time)?.wait()
    }

    /// Returns the number of all calls.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.calls.values().sum()
    }

    /// Returns how often a call began, by its number, as `libc::SYS_write`.
    #[must_use]
    pub fn number(&self, call: libc::c_long) -> u64 {
        u64::try_from(call).ok().and_then(|call| self.calls.get(&call)).copied().unwrap_or(0)
    }
}

impl fmt::Display for SyscallCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} system calls in {:?}", self.total(), self.watched)?;
        for (&call, count) in &self.calls {
            match name(call) {
                Some(name) => write!(f, ", {name} {count}")?,
                None => write!(f, ", number {call} {count}")?,
            }
        }
        Ok(())
    }
}

/// A running watch.
#[derive(Debug)]
pub struct SyscallWatch {
    stop: Arc<AtomicBool>,
    tracer: Option<JoinHandle<io::Result<SyscallCount>>>,
}

impl SyscallWatch {
    /// Begins to watch a thread of another process, by its number (a process' number is its first
    /// thread's). From its return on, every call counts, until `at_most` is over.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the caller may not watch the thread: it is another user's, not a
    /// child (Yama), or watched already. A thread of the calling process cannot be watched.
    pub fn start(tid: u32, at_most: Duration) -> Result<SyscallWatch, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let (attached, wait) = mpsc::sync_channel(1);
        // All ptrace calls for a thread have to come from the one thread that attached.
        let tracer = std::thread::Builder::new()
            .name("syscall-watch".to_owned())
            .spawn({
                let stop = Arc::clone(&stop);
                move || {
                    let mut trace = match Trace::attach(tid) {
                        Ok(trace) => trace,
                        Err(error) => {
                            let _ = attached.send(Some(error));
                            return Err(io::Error::other("not attached"));
                        }
                    };
                    let _ = attached.send(None);
                    trace.watch(at_most, &stop)
                }
            })
            .map_err(Error::failed("start a thread"))?;
        match wait.recv() {
            Ok(None) => Ok(SyscallWatch { stop, tracer: Some(tracer) }),
            Ok(Some(errno)) => Err(explain(tid, errno)),
            Err(_) => Err(lost()),
        }
    }

    /// Ends the watch.
    ///
    /// # Errors
    /// When the thread would not stop.
    pub fn stop(self) -> Result<SyscallCount, Error> {
        self.stop.store(true, Relaxed);
        self.wait()
    }

    /// Waits until the watch's time is over, or the thread has ended.
    ///
    /// # Errors
    /// When the thread would not stop.
    pub fn wait(mut self) -> Result<SyscallCount, Error> {
        match self.tracer.take().map(JoinHandle::join) {
            Some(Ok(count)) => count.map_err(Error::failed("watch a thread")),
            _ => Err(lost()),
        }
    }
}

impl Drop for SyscallWatch {
    /// The watched thread goes on unwatched.
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}

fn lost() -> Error {
    Error::Failed {
        what: "watch a thread".to_owned(),
        cause: io::Error::other("the watching thread ended early"),
    }
}

fn explain(tid: u32, errno: Errno) -> Error {
    let cause = format!("thread {tid} cannot be watched: {}", io::Error::from(errno));
    match errno {
        Errno::PERM | Errno::ACCESS | Errno::NOSYS => Error::Unavailable(Unavailable {
            cause,
            remedy: "watch a child of the same user; see kernel.yama.ptrace_scope, and in a \
                     container --cap-add SYS_PTRACE"
                .to_owned(),
        }),
        _ => Error::Failed { what: format!("watch thread {tid}"), cause: errno.into() },
    }
}

/// The tracer's side. The kernel detaches when its thread ends.
struct Trace {
    tid: libc::pid_t,
    calls: BTreeMap<u64, u64>,
    exited: bool,
}

/// A stop of the traced thread: the signal, and the event above it.
struct Stop {
    signal: i32,
    event: i32,
}

impl Trace {
    /// Attaches, and brings the thread from any state to one in which the kernel reports its calls.
    fn attach(tid: u32) -> Result<Trace, Errno> {
        let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::SRCH)?;
        let mut trace = Trace { tid, calls: BTreeMap::new(), exited: false };
        trace.request(libc::PTRACE_SEIZE, libc::PTRACE_O_TRACESYSGOOD as usize)?;
        trace.request(libc::PTRACE_INTERRUPT, 0)?;
        let deadline = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(stop) = trace.stopped()? {
                trace.go_on(&stop)?;
                return Ok(trace);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Err(Errno::TIMEDOUT)
    }

    fn watch(&mut self, at_most: Duration, stop: &AtomicBool) -> io::Result<SyscallCount> {
        let start = Instant::now();
        let mut last_stop = start;
        // The time and reason of the end, once it came; from then on the tracer waits for a stop to
        // leave at.
        let mut ending: Option<(Instant, WatchEnd)> = None;
        loop {
            let found = self.stopped()?;
            let now = Instant::now();
            if ending.is_none() && (stop.load(Relaxed) || now - start >= at_most) {
                let why = if stop.load(Relaxed) { WatchEnd::Stopped } else { WatchEnd::TimeOver };
                ending = Some((now, why));
                if found.is_none() && !self.exited {
                    self.interrupt()?;
                }
            }
            if self.exited {
                return Ok(self.count(start, now, WatchEnd::Exited));
            }
            match (found, ending) {
                (Some(stop), Some((end, why))) => {
                    self.detach(&stop)?;
                    return Ok(self.count(start, end, why));
                }
                (Some(stop), None) => {
                    last_stop = now;
                    self.go_on(&stop)?;
                }
                (None, Some((end, _))) if now - end > STOP_TIMEOUT => {
                    return Err(Errno::TIMEDOUT.into());
                }
                (None, _) if now - last_stop < SPIN => std::thread::yield_now(),
                (None, _) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }

    fn count(&mut self, start: Instant, end: Instant, ended: WatchEnd) -> SyscallCount {
        SyscallCount { calls: std::mem::take(&mut self.calls), watched: end - start, ended }
    }

    /// Returns the stop that the thread is in, if any. Its end is noticed and left for its parent.
    fn stopped(&mut self) -> Result<Option<Stop>, Errno> {
        let flags = libc::WNOHANG | libc::__WALL;
        match self.wait(flags | libc::WSTOPPED) {
            Ok(Some((_, status))) => {
                return Ok(Some(Stop { signal: status & 0xff, event: status >> 8 }));
            }
            Ok(None) => {}
            Err(Errno::CHILD) => {
                self.exited = true;
                return Ok(None);
            }
            Err(errno) => return Err(errno),
        }
        self.exited = match self.wait(flags | libc::WEXITED | libc::WNOWAIT) {
            // The kernel reports stops to a tracer at any time: one may have come just now.
            Ok(news) => news.is_some_and(|(code, _)| {
                matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)
            }),
            Err(Errno::CHILD) => true,
            Err(errno) => return Err(errno),
        };
        Ok(None)
    }

    /// Returns the kind of news (`CLD_TRAPPED` and so on) and its status.
    fn wait(&self, flags: libc::c_int) -> Result<Option<(i32, i32)>, Errno> {
        // SAFETY: a siginfo is numbers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the result is written to a live siginfo.
        let result = unsafe { libc::waitid(libc::P_PID, self.tid as libc::id_t, &mut info, flags) };
        if result != 0 {
            return match last_errno() {
                Errno::INTR => Ok(None),
                errno => Err(errno),
            };
        }
        // SAFETY: waitid fills these fields, or leaves the zeros when there is no news.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        Ok((pid != 0).then_some((info.si_code, status)))
    }

    /// Records the reason of the stop, and lets the thread go on to the next.
    fn go_on(&mut self, stop: &Stop) -> Result<(), Errno> {
        if stop.signal == (libc::SIGTRAP | 0x80) {
            if let Some(call) = self.begun_call()? {
                *self.calls.entry(call).or_default() += 1;
            }
            return self.resume(libc::PTRACE_SYSCALL, 0);
        }
        if stop.event == EVENT_STOP && stop.signal != libc::SIGTRAP {
            // A signal (SIGSTOP) stopped it: it stays stopped until another one continues it.
            return self.resume(libc::PTRACE_LISTEN, 0);
        }
        self.resume(libc::PTRACE_SYSCALL, passed_on(stop))
    }

    fn detach(&mut self, stop: &Stop) -> Result<(), Errno> {
        if stop.signal == (libc::SIGTRAP | 0x80)
            && let Some(call) = self.begun_call()?
        {
            *self.calls.entry(call).or_default() += 1;
        }
        self.resume(libc::PTRACE_DETACH, passed_on(stop))
    }

    fn interrupt(&mut self) -> Result<(), Errno> {
        match self.request(libc::PTRACE_INTERRUPT, 0) {
            // It ended, or stopped by itself, since we looked.
            Err(Errno::SRCH) => Ok(()),
            other => other,
        }
    }

    /// Resumes the thread. A thread killed meanwhile is no error: its end comes next.
    fn resume(&mut self, request: libc::c_uint, signal: i32) -> Result<(), Errno> {
        match self.request(request, signal as usize) {
            Err(Errno::SRCH) => Ok(()),
            other => other,
        }
    }

    /// Returns the number of the call that is about to begin; `None` at the end of one.
    fn begun_call(&self) -> Result<Option<u64>, Errno> {
        // SAFETY: the struct is numbers, for which zero is a value.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        let size = size_of_val(&info);
        // SAFETY: the kernel writes at most `size` bytes to a live struct of that size.
        let result =
            unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, self.tid, size, &raw mut info) };
        if result < 0 {
            return match last_errno() {
                Errno::SRCH => Ok(None),
                errno => Err(errno),
            };
        }
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return Ok(None);
        }
        // SAFETY: at an entry, the kernel has filled this part of the union; it is a number.
        Ok(Some(unsafe { info.u.entry.nr }))
    }

    fn request(&self, request: libc::c_uint, data: usize) -> Result<(), Errno> {
        // SAFETY: none of the requests made through here reads or writes memory of ours.
        let result =
            unsafe { libc::ptrace(request, self.tid, std::ptr::null_mut::<libc::c_void>(), data) };
        if result < 0 { Err(last_errno()) } else { Ok(()) }
    }
}

/// Returns the signal that the thread was about to get, which it gets now. Stops of the watch are
/// none.
fn passed_on(stop: &Stop) -> i32 {
    if stop.event != 0 || stop.signal & 0x80 != 0 { 0 } else { stop.signal }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Returns the names of the calls that a data path may make, for messages.
fn name(call: u64) -> Option<&'static str> {
    let names = [
        (libc::SYS_read, "read"),
        (libc::SYS_readv, "readv"),
        (libc::SYS_write, "write"),
        (libc::SYS_writev, "writev"),
        (libc::SYS_ppoll, "ppoll"),
        (libc::SYS_epoll_pwait, "epoll_pwait"),
        (libc::SYS_epoll_pwait2, "epoll_pwait2"),
        (libc::SYS_epoll_ctl, "epoll_ctl"),
        (libc::SYS_futex, "futex"),
        (libc::SYS_sendto, "sendto"),
        (libc::SYS_sendmsg, "sendmsg"),
        (libc::SYS_recvfrom, "recvfrom"),
        (libc::SYS_recvmsg, "recvmsg"),
        (libc::SYS_ioctl, "ioctl"),
        (libc::SYS_close, "close"),
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_munmap, "munmap"),
        (libc::SYS_madvise, "madvise"),
        (libc::SYS_brk, "brk"),
        (libc::SYS_nanosleep, "nanosleep"),
        (libc::SYS_clock_nanosleep, "clock_nanosleep"),
        (libc::SYS_clock_gettime, "clock_gettime"),
        (libc::SYS_sched_yield, "sched_yield"),
        (libc::SYS_restart_syscall, "restart_syscall"),
        (libc::SYS_timerfd_settime, "timerfd_settime"),
        (libc::SYS_io_uring_enter, "io_uring_enter"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_poll, "poll"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_epoll_wait, "epoll_wait"),
    ];
    let call = libc::c_long::try_from(call).ok()?;
    names.iter().find(|(number, _)| *number == call).map(|(_, name)| *name)
}
