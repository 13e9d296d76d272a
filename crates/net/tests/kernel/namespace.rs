//! A private network namespace of this process, and interfaces in it.

use std::io;
use std::process::Command;

/// Enters a new network namespace; as an ordinary user, in a new user namespace. Call it before any
/// thread starts.
pub(crate) fn enter() -> io::Result<()> {
    // SAFETY: no memory is involved.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let mut flags = libc::CLONE_NEWNET;
    if uid != 0 {
        flags |= libc::CLONE_NEWUSER;
    }
    // SAFETY: no memory is involved; this is the only thread.
    if unsafe { libc::unshare(flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if uid != 0 {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1"))?;
    }
    ip("link set lo up")
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &str) -> io::Result<()> {
    let output = Command::new("ip").args(arguments.split_whitespace()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("ip {arguments}: {said}")))
}
