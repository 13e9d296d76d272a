//! Files that a test and the programs it starts see, and the rest of the machine does not.
//!
//! Unsafe lives here for `mount`, for `unshare`, which is unsafe in rustix because of its file
//! descriptor flag, and for the hook between fork and exec, which makes one system call.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::thread::UnshareFlags;

/// Gives the calling thread a private mount namespace. The threads and processes that it starts later
/// share that namespace; the process' other threads do not.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, which a test has in its namespace.
pub fn own_mounts() -> io::Result<()> {
    // SAFETY: descriptors stay shared; only this thread's mounts and directories become its own.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    // No later mount reaches the machine.
    mount(None, Path::new("/"), libc::MS_REC | libc::MS_PRIVATE, "")
}

/// Mounts an empty file system in memory on a directory, as a thread with [`own_mounts`]. `options` are
/// those of tmpfs(5), such as `size=64k`.
///
/// # Errors
/// Those of mount(2).
pub fn mount_tmpfs(place: &Path, options: &str) -> io::Result<()> {
    mount(Some("tmpfs"), place, 0, options)
}

fn mount(kind: Option<&str>, on: &Path, flags: libc::c_ulong, options: &str) -> io::Result<()> {
    let kind = CString::new(kind.unwrap_or("none"))?;
    let on = CString::new(on.as_os_str().as_bytes())?;
    let options = CString::new(options)?;
    // SAFETY: all pointers are to texts that end with a zero and live during the call.
    let result = unsafe {
        libc::mount(kind.as_ptr(), on.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a command start in a user namespace in which no user exists, so that it cannot change to
/// another one. A program that does so as root, such as tcpdump, fails where a test's user namespace
/// has only one user.
pub fn without_users(command: &mut Command) {
    let enter = || {
        // SAFETY: descriptors stay shared; only the user namespace changes.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }.map_err(io::Error::from)
    };
    // SAFETY: one system call.
    unsafe { command.pre_exec(enter) };
}
