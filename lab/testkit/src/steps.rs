//! Counts the instructions of a process from outside (`ptrace(2)`): all of them, those that lock a
//! line of memory, and those that wait for all stores.
//!
//! Unsafe lives here because `ptrace` and `waitid` are known to libc alone.
//!
//! A stepped process runs some thousand times slower, with the same behaviour. Counts are of the
//! program as built: they include its libraries, and exclude the kernel.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use towpath_sandbox::{Error, Unavailable};

/// The time that a thread has to stop after the attachment.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest instruction, in bytes (Intel's manual, volume 2, section 2.3.11).
const LONGEST: usize = 15;

/// The executed instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Steps {
    /// Instructions.
    pub instructions: u64,
    /// Those that hold a line of memory while they read, change and write it: with a lock prefix,
    /// or `xchg` with memory. Atomic read-modify-writes and locks consist of them.
    pub locked: u64,
    /// Full memory fences (`mfence`).
    pub fences: u64,
    /// Those of `instructions` that the watch could not read: locks or fences may be among them.
    pub unread: u64,
}

impl Steps {
    /// Returns the difference from an earlier count.
    #[must_use]
    pub fn since(&self, before: &Steps) -> Steps {
        Steps {
            instructions: self.instructions - before.instructions,
            locked: self.locked - before.locked,
            fences: self.fences - before.fences,
            unread: self.unread - before.unread,
        }
    }
}

#[derive(Default)]
struct SteppedState {
    stop: AtomicBool,
    instructions: AtomicU64,
    locked: AtomicU64,
    fences: AtomicU64,
    unread: AtomicU64,
}

/// A process that the watch steps through, all of its threads, until this is dropped.
pub struct StepWatch {
    shared: Arc<SteppedState>,
    tracer: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for StepWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StepWatch").field("steps", &self.steps()).finish()
    }
}

impl StepWatch {
    /// Begins to step through a child of this process, all threads that it has now.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the caller may not watch it, or on processors whose instructions
    /// this module does not know.
    pub fn start(pid: u32) -> Result<StepWatch, Error> {
        if cfg!(not(target_arch = "x86_64")) {
            return Err(Error::Unavailable(Unavailable {
                cause: "instructions are counted on x86-64 alone".to_owned(),
                remedy: "run where the processor is one".to_owned(),
            }));
        }
        let shared = Arc::new(SteppedState::default());
        let (attached, wait) = mpsc::sync_channel(1);
        let tracer = std::thread::Builder::new()
            .name("steps".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                // All ptrace calls for a thread have to come from the one that attached.
                move || match Tracer::attach(pid) {
                    Ok(mut tracer) => {
                        let _ = attached.send(None);
                        tracer.run(&shared);
                    }
                    Err(error) => {
                        let _ = attached.send(Some(error));
                    }
                }
            })
            .map_err(Error::failed("start a thread"))?;
        match wait.recv() {
            Ok(None) => Ok(StepWatch { shared, tracer: Some(tracer) }),
            Ok(Some(error)) => Err(Error::Unavailable(Unavailable {
                cause: format!("process {pid} cannot be stepped through: {error}"),
                remedy: "see kernel.yama.ptrace_scope, and in a container --cap-add SYS_PTRACE"
                    .to_owned(),
            })),
            Err(_) => Err(Error::Failed {
                what: "step through a process".to_owned(),
                cause: io::Error::other("the stepping thread ended early"),
            }),
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn steps(&self) -> Steps {
        Steps {
            instructions: self.shared.instructions.load(Ordering::Relaxed),
            locked: self.shared.locked.load(Ordering::Relaxed),
            fences: self.shared.fences.load(Ordering::Relaxed),
            unread: self.shared.unread.load(Ordering::Relaxed),
        }
    }

    /// Waits until all threads have slept for `quiet`, at most this long; `None` if they do not.
    #[must_use]
    pub fn settle(&self, quiet: Duration, at_most: Duration) -> Option<Steps> {
        let start = Instant::now();
        let (mut last, mut since) = (self.steps(), start);
        while start.elapsed() < at_most {
            std::thread::sleep(quiet / 8);
            let now = self.steps();
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() >= quiet {
                return Some(now);
            }
        }
        None
    }
}

impl Drop for StepWatch {
    /// The process goes on unwatched: the end of the tracing thread releases it.
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(tracer) = self.tracer.take() {
            let _ = tracer.join();
        }
    }
}

/// The kind of an instruction, as far as the watch counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Locked,
    Fence,
}

/// Decodes an instruction's bytes (Intel's manual, volume 2, chapter 2).
fn kind(bytes: &[u8]) -> Kind {
    let mut rest = bytes;
    let mut locked = false;
    while let Some((first, after)) = rest.split_first() {
        match first {
            0xf0 => locked = true,
            0x66 | 0x67 | 0xf2 | 0xf3 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
            // REX comes last.
            0x40..=0x4f => {
                rest = after;
                break;
            }
            _ => break,
        }
        rest = after;
    }
    match rest {
        _ if locked => Kind::Locked,
        [0x0f, 0xae, 0xf0, ..] => Kind::Fence,
        // xchg; two registers are exchanged without a lock.
        [0x86 | 0x87, operands, ..] if operands >> 6 != 3 => Kind::Locked,
        _ => Kind::Plain,
    }
}

struct Tracer {
    threads: Vec<libc::pid_t>,
    known: HashMap<u64, Kind>,
}

impl Tracer {
    fn attach(pid: u32) -> io::Result<Tracer> {
        let mut threads = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let name = entry?.file_name();
            threads.extend(name.to_str().and_then(|name| name.parse::<libc::pid_t>().ok()));
        }
        let tracer = Tracer { threads, known: HashMap::new() };
        for &tid in &tracer.threads {
            request(libc::PTRACE_SEIZE, tid, 0)?;
            request(libc::PTRACE_INTERRUPT, tid, 0)?;
            let deadline = Instant::now() + STOP_TIMEOUT;
            loop {
                match stopped(tid)? {
                    Some(stop) if stop.is_event => break,
                    // A signal of its own came first: the thread gets it, and stops for the watch
                    // then.
                    Some(stop) => request(libc::PTRACE_CONT, tid, stop.signal as usize)?,
                    None => std::thread::yield_now(),
                }
                if Instant::now() > deadline {
                    return Err(Errno::TIMEDOUT.into());
                }
            }
        }
        for &tid in &tracer.threads {
            request(libc::PTRACE_SINGLESTEP, tid, 0)?;
        }
        Ok(tracer)
    }

    fn run(&mut self, shared: &SteppedState) {
        let mut last = Instant::now();
        while !shared.stop.load(Ordering::Relaxed) && !self.threads.is_empty() {
            let mut idle = true;
            let mut place = 0;
            while place < self.threads.len() {
                let tid = self.threads[place];
                match stopped(tid) {
                    Ok(Some(stop)) => {
                        idle = false;
                        self.step(tid, stop, shared);
                        place += 1;
                    }
                    Ok(None) => place += 1,
                    // The thread has ended.
                    Err(_) => {
                        self.threads.swap_remove(place);
                    }
                }
            }
            if !idle {
                last = Instant::now();
            } else if last.elapsed() > Duration::from_millis(1) {
                std::thread::sleep(Duration::from_micros(200));
            } else {
                // On one core with it, this is how the thread gets to its next stop.
                std::thread::yield_now();
            }
        }
        self.detach();
    }

    /// Counts a stopped thread's next instruction, and steps over it.
    fn step(&mut self, tid: libc::pid_t, stop: Stop, shared: &SteppedState) {
        shared.instructions.fetch_add(1, Ordering::Relaxed);
        match self.look(tid) {
            Ok(Kind::Plain) => {}
            Ok(Kind::Locked) => _ = shared.locked.fetch_add(1, Ordering::Relaxed),
            Ok(Kind::Fence) => _ = shared.fences.fetch_add(1, Ordering::Relaxed),
            // A thread left stopped would hold up its process: it goes on.
            Err(_) => _ = shared.unread.fetch_add(1, Ordering::Relaxed),
        }
        // The kernel refuses only for a thread that has ended meanwhile.
        let _ = request(libc::PTRACE_SINGLESTEP, tid, stop.own_signal());
    }

    /// Returns the kind of a stopped thread's next instruction.
    fn look(&mut self, tid: libc::pid_t) -> io::Result<Kind> {
        let at = instruction_pointer(tid)?;
        if let Some(kind) = self.known.get(&at) {
            return Ok(*kind);
        }
        let kind = kind(&bytes_at(tid, at)?);
        self.known.insert(at, kind);
        Ok(kind)
    }

    /// Stops each thread once more, and releases it: a thread may not be released while it steps.
    /// Its last step may have left a pending trap, which would end the process unwatched: wait for
    /// it first.
    fn detach(&mut self) {
        for &tid in &self.threads {
            let _ = request(libc::PTRACE_INTERRUPT, tid, 0);
            let deadline = Instant::now() + STOP_TIMEOUT;
            while Instant::now() < deadline {
                match stopped(tid) {
                    Ok(None) => std::thread::yield_now(),
                    Ok(Some(stop)) if has_trap_pending(tid) => {
                        let _ = request(libc::PTRACE_CONT, tid, stop.own_signal());
                    }
                    Ok(Some(stop)) => {
                        let _ = request(libc::PTRACE_DETACH, tid, stop.own_signal());
                        break;
                    }
                    Err(_) => break,
                }
            }
        }
    }
}

/// The reason why a thread has stopped.
#[derive(Debug, Clone, Copy)]
struct Stop {
    signal: i32,
    /// `true` if the watch asked for the stop, or the whole process stopped: the thread does not
    /// get the signal.
    is_event: bool,
}

impl Stop {
    /// Returns the signal that a stepping thread gets when it goes on: traps are the watch's, all
    /// others its own. 0: none.
    fn own_signal(self) -> usize {
        if self.is_event || self.signal == libc::SIGTRAP { 0 } else { self.signal as usize }
    }
}

/// Returns `true` if a trap is pending for a thread.
fn has_trap_pending(tid: libc::pid_t) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let pending = crate::times::field(&status, "SigPnd:");
    pending
        .and_then(|mask| u64::from_str_radix(mask, 16).ok())
        .is_some_and(|mask| mask >> (libc::SIGTRAP - 1) & 1 == 1)
}

/// Returns the reason why a thread has stopped, if it has; an error when it has ended.
fn stopped(tid: libc::pid_t) -> io::Result<Option<Stop>> {
    // SAFETY: a siginfo is numbers, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WNOHANG | libc::__WALL | libc::WSTOPPED;
    // SAFETY: the result is written to a live siginfo.
    let result = unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, &mut info, flags) };
    if result != 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(error) };
    }
    // SAFETY: waitid fills these fields, or leaves the zeros when there is no news.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    // The event is above the signal (ptrace(2), PTRACE_EVENT stops).
    Ok((pid != 0).then_some(Stop { signal: status & 0x7f, is_event: status >> 8 != 0 }))
}

fn request(request: libc::c_uint, tid: libc::pid_t, data: usize) -> io::Result<()> {
    // SAFETY: none of the requests made through here reads or writes memory of ours.
    let result = unsafe { libc::ptrace(request, tid, std::ptr::null_mut::<libc::c_void>(), data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(target_arch = "x86_64")]
fn instruction_pointer(tid: libc::pid_t) -> io::Result<u64> {
    // SAFETY: the registers are numbers, for which zero is a value.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel writes the registers to a live struct of its own layout.
    let result = unsafe {
        libc::ptrace(libc::PTRACE_GETREGS, tid, none, (&raw mut registers).cast::<libc::c_void>())
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(registers.rip) }
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction_pointer(_tid: libc::pid_t) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Returns an instruction's bytes; fewer at the end of the mapping.
fn bytes_at(tid: libc::pid_t, at: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0_u8; LONGEST];
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: the kernel writes at most as many bytes to a live vector as it has; the other address
    // is the other process's.
    let got = unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    bytes.truncate(got);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_stepped_process_goes_on() {
        if cfg!(not(target_arch = "x86_64")) {
            return;
        }
        let mut cat =
            Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (mut into, mut from) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
        let mut byte = [0];
        // The echo shows that `cat` has finished its start-up of a hundred thousand instructions.
        into.write_all(&[99]).unwrap();
        from.read_exact(&mut byte).unwrap();
        for round in 0..16 {
            let watch = match StepWatch::start(cat.id()) {
                Ok(watch) => watch,
                Err(error) => {
                    let why = error.unavailable().unwrap_or_else(|| panic!("{error}"));
                    crate::skip("a_stepped_process_goes_on", why);
                    break;
                }
            };
            into.write_all(&[round]).unwrap();
            from.read_exact(&mut byte).unwrap();
            assert_eq!(byte, [round]);
            // Released at any moment: sometimes while it sleeps, sometimes in the middle of a step.
            if round % 2 == 0 {
                let quiet = Duration::from_millis(2);
                let steps = watch.settle(quiet, Duration::from_secs(10)).unwrap();
                assert!(steps.instructions > 0 && steps.unread == 0, "{steps:?}");
            }
            drop(watch);
            assert_eq!(cat.try_wait().unwrap(), None, "it goes on, after {round} watches");
        }
        into.write_all(&[77]).unwrap();
        from.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [77]);
        drop(into);
        assert!(cat.wait().unwrap().success());
    }

    /// A signal may come at any moment of a watch, its first and its last among them.
    #[test]
    fn no_signal_to_a_stepped_process_is_lost() {
        if cfg!(not(target_arch = "x86_64")) {
            return;
        }
        // Answers each signal with a line, and never sleeps.
        let script = "trap echo USR1; echo; while :; do :; done";
        let mut shell =
            Command::new("/bin/sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut from = shell.stdout.take().unwrap();
        let pid = rustix::process::Pid::from_child(&shell);
        let answered = |from: &mut std::process::ChildStdout| {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
            let came = poll(&mut [PollFd::new(&*from, PollFlags::IN)], Some(&limit)).unwrap() > 0;
            came && from.read(&mut [0]).unwrap() == 1
        };
        assert!(answered(&mut from), "it started");
        let over = AtomicBool::new(false);
        let lost = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let until = Instant::now() + Duration::from_secs(1);
                let mut lost = 0;
                while lost == 0 && Instant::now() < until {
                    rustix::process::kill_process(pid, rustix::process::Signal::USR1).unwrap();
                    lost += u32::from(!answered(&mut from));
                }
                over.store(true, Ordering::Relaxed);
                lost
            });
            let mut watches = 0;
            while !over.load(Ordering::Relaxed) {
                match StepWatch::start(shell.id()) {
                    Ok(watch) => drop(watch),
                    Err(error) => {
                        let why = error.unavailable().unwrap_or_else(|| panic!("{error}"));
                        crate::skip("no_signal_to_a_stepped_process_is_lost", why);
                        break;
                    }
                }
                watches += 1;
            }
            println!("{watches} watches");
            sender.join().unwrap()
        });
        assert_eq!(shell.try_wait().unwrap(), None, "it goes on");
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert_eq!(lost, 0);
    }

    #[test]
    fn instructions_are_told_apart() {
        for (bytes, expected) in [
            (&[0xf0, 0x48, 0x0f, 0xb1, 0x0f][..], Kind::Locked), // lock cmpxchg [rdi], rcx
            (&[0xf0, 0x83, 0x0c, 0x24, 0x00], Kind::Locked),     // lock or dword [rsp], 0
            (&[0x66, 0xf0, 0x0f, 0xc1, 0x07], Kind::Locked),     // lock xadd [rdi], ax
            (&[0x48, 0x87, 0x07], Kind::Locked),                 // xchg [rdi], rax
            (&[0x87, 0x07], Kind::Locked),                       // xchg [rdi], eax
            (&[0x48, 0x87, 0xc1], Kind::Plain),                  // xchg rcx, rax
            (&[0x0f, 0xae, 0xf0], Kind::Fence),                  // mfence
            (&[0x0f, 0xae, 0xe8], Kind::Plain),                  // lfence
            (&[0x48, 0x89, 0x07], Kind::Plain),                  // mov [rdi], rax
            (&[0x41, 0xf0], Kind::Plain),                        // a prefix where none may be
            (&[], Kind::Plain),
        ] {
            assert_eq!(kind(bytes), expected, "{bytes:02x?}");
        }
    }
}
