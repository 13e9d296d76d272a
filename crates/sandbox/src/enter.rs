//! Entering a private network namespace: in this process, or between the fork and the exec of a
//! child.
//!
//! For root this creates only a network namespace. For another user it also creates a user
//! namespace, in which that user is root and has all of root's rights over that network.
//!
//! Unsafe lives here because code between fork and exec may only make system calls
//! (`signal-safety(7)`): another thread may have held the allocator's lock at the fork. So the
//! parent prepares all data before the fork, and [`Isolation::apply`] neither allocates nor locks.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{CapabilitySet, UnshareFlags};

use crate::error::{Error, Unavailable};
use crate::refusal::{Step, explain_unavailable};

/// How the calling process entered its network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// As root of the machine or container: the users stay the same.
    AsRoot,
    /// In a user namespace with one user: the caller, as root.
    AsUser,
}

/// All prepared data for the entry.
#[derive(Debug, Clone)]
struct Isolation {
    entered: Entered,
    user_map: String,
    group_map: String,
}

impl Isolation {
    fn prepare() -> Isolation {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN;
        let root = rustix::thread::capabilities(None)
            .is_ok_and(|capabilities| capabilities.effective.contains(needed));
        Isolation {
            entered: if root { Entered::AsRoot } else { Entered::AsUser },
            user_map: format!("0 {uid} 1\n"),
            group_map: format!("0 {gid} 1\n"),
        }
    }

    /// Enters, with only system calls: see the module.
    fn apply(&self) -> io::Result<()> {
        if self.entered == Entered::AsRoot {
            return unshare(UnshareFlags::NEWNET).and_then(|()| loopback());
        }
        unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)?;
        // Without this no ordinary user may map a group (user_namespaces(7)).
        write(c"/proc/self/setgroups", b"deny").map_err(|e| Step::DenyGroups.failed(e))?;
        write(c"/proc/self/uid_map", self.user_map.as_bytes())
            .map_err(|e| Step::MapUser.failed(e))?;
        write(c"/proc/self/gid_map", self.group_map.as_bytes())
            .map_err(|e| Step::MapGroup.failed(e))?;
        loopback()
    }
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: descriptors stay shared; only user and network namespace change.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(|e| Step::Unshare.failed(e))
}

fn write(path: &std::ffi::CStr, bytes: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, bytes).map(|_| ())
}

fn loopback() -> io::Result<()> {
    raise_loopback().map_err(|e| Step::Loopback.failed(e))
}

/// Sets up the loopback of the calling thread's network namespace, with only system calls.
pub(crate) fn raise_loopback() -> Result<(), Errno> {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: an ifreq is numbers and bytes, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request takes an `ifreq`.
    unsafe { ioctl(&socket, libc::SIOCSIFFLAGS as libc::Ioctl, &mut request) }
}

/// Makes an ioctl with an `ifreq` argument, with only system calls.
///
/// # Safety
/// `request` reads and writes one `ifreq`, and nothing else.
pub(crate) unsafe fn ioctl(
    fd: &std::os::fd::OwnedFd,
    request: libc::Ioctl,
    argument: &mut libc::ifreq,
) -> Result<(), Errno> {
    use std::os::fd::AsRawFd;
    // SAFETY: the caller's promise.
    if unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut *argument) } == 0 {
        return Ok(());
    }
    // SAFETY: errno is this thread's own.
    Err(Errno::from_raw_os_error(unsafe { *libc::__errno_location() }))
}

/// Enters a new network namespace, whose loopback is up. Call it at the start of `main`: the
/// process must not have a second thread yet.
///
/// # Errors
/// [`Error::Unavailable`] if the machine does not allow it; [`Error::Failed`] if there are several
/// threads.
pub fn enter() -> Result<Entered, Error> {
    let threads = threads();
    if threads != 1 {
        return Err(Error::Failed {
            what: "go into a network namespace".to_owned(),
            cause: io::Error::other(format!("the process has {threads} threads already")),
        });
    }
    let isolation = Isolation::prepare();
    isolation.apply().map_err(unavailable)?;
    Ok(isolation.entered)
}

/// Counts the threads of this process. One that was joined can be listed for a moment longer, so it waits
/// for a second until only one is left.
fn threads() -> usize {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        let threads = fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
        if threads == 1 || Instant::now() > deadline {
            return threads;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Makes a command start in a new network namespace, like that of [`enter`]. If that is impossible,
/// `spawn` fails with an error that [`check_namespaces`] explains.
pub fn isolate(command: &mut Command) {
    let isolation = Isolation::prepare();
    // SAFETY: `apply` makes only system calls.
    unsafe { command.pre_exec(move || isolation.apply()) };
}

/// Checks in a child that [`enter`] and [`isolate`] work here.
///
/// # Errors
/// The machine's refusal.
pub fn check_namespaces() -> Result<(), Unavailable> {
    check_inside(|| Ok(()))
}

/// Enters a namespace in a child and runs `then` there, which makes only system calls.
pub(crate) fn check_inside(then: fn() -> io::Result<()>) -> Result<(), Unavailable> {
    let isolation = Isolation::prepare();
    // Never executed: the child always ends with an error, of which one means success. The child
    // inherits standard input and output, since /dev/null may not exist.
    let mut command = Command::new("/proc/self/exe");
    // SAFETY: `apply` and the checks of this crate make only system calls.
    unsafe {
        command.pre_exec(move || {
            isolation.apply()?;
            then()?;
            // Any error number works: the step carries the result.
            Err(Step::Passed.failed(Errno::CANCELED))
        })
    };
    match command.spawn() {
        Err(error) if matches!(Step::of(&error), Some((Step::Passed, _))) => Ok(()),
        Err(error) => Err(explain_unavailable(&error)),
        // The child reached neither its end nor an error: it was killed before.
        Ok(mut child) => {
            let _ = child.kill();
            let ended = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
            Err(Unavailable {
                cause: format!("the child that went into a network namespace died there: {ended}"),
                remedy: "see the kernel's log: a seccomp filter or a security module may kill it"
                    .to_owned(),
            })
        }
    }
}

fn unavailable(error: io::Error) -> Error {
    Error::Unavailable(explain_unavailable(&error))
}

/// Returns the machine's refusal to a command that [`isolate`] prepared; `None` if the start failed
/// for another reason.
#[must_use]
pub fn explain(error: &io::Error) -> Option<Unavailable> {
    Step::of(error).map(|_| explain_unavailable(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_inside_tells_success_failure_and_death_apart() {
        if let Err(why) = check_namespaces() {
            let (cause, remedy) = (why.cause, why.remedy);
            let why = towpath_testkit::Unavailable { cause, remedy };
            towpath_testkit::skip("a_check_inside_tells_success_failure_and_death_apart", &why);
            return;
        }
        let refused = check_inside(|| Err(Step::MakeTap.failed(Errno::PERM))).unwrap_err();
        assert!(refused.cause.contains("TUNSETIFF"), "{refused}");
        let died = check_inside(|| {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
            Ok(())
        });
        assert!(died.unwrap_err().cause.contains("died there"));
    }

    #[test]
    fn several_threads_do_not_enter() {
        // The test harness has another thread beside this one, unless it runs only one test.
        std::thread::scope(|scope| {
            let (hold, held) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || held.recv());
            let error = enter().unwrap_err();
            assert!(error.unavailable().is_none() && error.to_string().contains("threads"));
            drop(hold);
        });
    }
}
