//! Files that a test and the programs it starts see, and the rest of the machine does not.
//!
//! Unsafe lives here for `mount`, and for `unshare`, which is unsafe in rustix because of its file
//! descriptor flag.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use rustix::thread::UnshareFlags;

/// The directory of the node of TUN and TAP interfaces.
const DEV_NET: &str = "/dev/net";

/// Gives the calling thread a private mount namespace. The threads and processes that it starts later
/// share that namespace; the process' other threads do not.
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, which a test has in its namespace.
pub fn enter_own_mounts() -> io::Result<()> {
    // SAFETY: descriptors stay shared; only this thread's mounts and directories become its own.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?;
    // No later mount reaches the machine.
    mount(None, Path::new("/"), libc::MS_REC | libc::MS_PRIVATE, "")
}

/// Mounts an empty file system in memory on a directory, as a thread with [`enter_own_mounts`]. `options` are
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

/// Hides `/dev/net`, as a thread with [`enter_own_mounts`], and makes its node `tun` anew with these
/// permissions. With `None`, makes no node.
///
/// # Errors
/// Those of mount(2), and those of mknod(2), which is for root of the machine.
pub fn replace_tun(permissions: Option<u32>) -> io::Result<()> {
    mount_tmpfs(Path::new(DEV_NET), "mode=755")?;
    if let Some(permissions) = permissions {
        let (node, mode) = (format!("{DEV_NET}/tun"), Mode::from_raw_mode(permissions));
        // The numbers of Documentation/admin-guide/devices.txt.
        let tun = rustix::fs::makedev(10, 200);
        rustix::fs::mknodat(CWD, &node, FileType::CharacterDevice, mode, tun)?;
        // The file creation mask does not apply here.
        rustix::fs::chmod(&node, mode)?;
    }
    Ok(())
}
