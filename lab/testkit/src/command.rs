//! Commands that start with other users, limits or signals than the test.
//!
//! Unsafe lives here because code between fork and exec may only make system calls
//! (`signal-safety(7)`), and for `unshare`, which is unsafe in rustix because of its file descriptor
//! flag.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::UnshareFlags;

/// Makes a command start in a user namespace in which no user exists, so that it cannot change to
/// another user. A program that does so as root, such as tcpdump, fails where a test's user namespace
/// has only one user.
pub fn without_users(command: &mut Command) {
    // SAFETY: one system call.
    unsafe { command.pre_exec(unshare_users) };
}

/// Makes a command start as root of a user namespace in which the caller is the only user.
pub fn as_only_user(command: &mut Command) {
    let users = format!("0 {} 1", rustix::process::geteuid().as_raw());
    let groups = format!("0 {} 1", rustix::process::getegid().as_raw());
    let enter = move || {
        unshare_users()?;
        // Without this no ordinary user may map a group (user_namespaces(7)).
        write(c"/proc/self/setgroups", "deny")?;
        write(c"/proc/self/uid_map", &users)?;
        write(c"/proc/self/gid_map", &groups)
    };
    // SAFETY: `enter` makes only system calls.
    unsafe { command.pre_exec(enter) };
}

/// Sets the soft and the hard limit of a command's resource.
pub fn set_limit(command: &mut Command, resource: Resource, amount: u64) {
    let limit = Rlimit { current: Some(amount), maximum: Some(amount) };
    // SAFETY: one system call.
    unsafe { command.pre_exec(move || Ok(setrlimit(resource, limit)?)) };
}

/// Makes a command start with the default actions of interrupt and termination. A shell without job
/// control starts its background jobs with interrupts ignored, which programs inherit.
pub fn with_default_signals(command: &mut Command) {
    let reset = || {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: the default action is no function.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: `reset` makes only system calls.
    unsafe { command.pre_exec(reset) };
}

/// The lowest number of a descriptor in the test for a command: beyond those in the command.
const FIRST_DESCRIPTOR: i32 = 500;

/// Makes a command start with these descriptors at the numbers from 3 on, as a service manager passes
/// them. If the program cannot be started, the error of `spawn` is lost.
///
/// # Panics
/// If the process may not have that many descriptors.
pub fn with_descriptors(command: &mut Command, descriptors: Vec<OwnedFd>) {
    let raise = |one: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(one, FIRST_DESCRIPTOR);
    let raised: Vec<OwnedFd> = descriptors.iter().map(|one| raise(one).unwrap()).collect();
    let place = move || {
        for (number, one) in (3..).zip(&raised) {
            // SAFETY: no pointers; nothing of this process uses the number before its exec.
            if unsafe { libc::dup2(one.as_raw_fd(), number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: `place` makes only system calls.
    unsafe { command.pre_exec(place) };
}

fn unshare_users() -> io::Result<()> {
    // SAFETY: descriptors stay shared; only the user namespace changes.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }?)
}

fn write(path: &CStr, text: &str) -> io::Result<()> {
    let file = rustix::fs::open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, text.as_bytes())?;
    Ok(())
}
