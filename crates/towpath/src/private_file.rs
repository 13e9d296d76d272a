//! Files that a privileged program opens by paths in directories where other users may write.
//!
//! Another user may have put a symbolic link, a hard link or a file into the path's place. The program would then
//! overwrite a file that the other user cannot write, or let the other user read the written data.
#![forbid(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::failure::says;

/// The permission bits of users other than the owner.
const OTHERS: u32 = 0o077;
/// The permission bits by which users other than the owner write.
const OTHERS_WRITE: u32 = 0o022;

/// The reason for which `open` refuses a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(
        "it is a symbolic link, which any user may have made; name the file itself, or - for the standard output of towpath capture"
    )]
    Link,
    #[error("it is neither a file nor a FIFO; choose another path")]
    Kind,
    #[error("user {0} owns it and could read the packets; remove it, or choose another path")]
    Owner(u32),
    #[error(
        "its permissions are {0:03o}, so others may have opened it; remove it, and make a FIFO with \
         mkfifo -m 600"
    )]
    Permissions(u32),
    #[error("the file has {0} names (hard links); remove this name, or choose another path")]
    Names(u64),
    #[error("{}; {}", says(.0), remedy(.0))]
    Io(#[from] io::Error),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENXIO) => "start the program that reads this FIFO first",
        Some(libc::EWOULDBLOCK) => {
            "another program has a lease on it (fcntl(2)); choose another path"
        }
        _ => "choose a file that can be written",
    }
}

/// The way in which `open` opens a file for packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    /// `true` if the program writes after the present contents; `false` if `open` removes them.
    pub(crate) appends: bool,
    /// `true` if a write to a FIFO without room fails with `EAGAIN`; `false` if it waits.
    pub(crate) nonblocking: bool,
}

/// Opens a file for packets, which only its owner may read. Creates a missing file with permissions 600. The owner of
/// an existing file must be this process's user, `user`, or the user that called sudo; no other user may have access.
/// Waits neither for the reader of a FIFO (`ENXIO`) nor for the end of a lease (`EWOULDBLOCK`), which others could prolong.
pub(crate) fn open(path: &Path, mode: Mode, user: Option<u32>) -> Result<File, OpenError> {
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .append(mode.appends)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(libc::ELOOP) => OpenError::Link,
        _ => error.into(),
    })?;
    if !mode.nonblocking {
        let flags = fcntl_getfl(&file).map_err(io::Error::from)?;
        fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(io::Error::from)?;
    }
    let about = file.metadata()?;
    let (kind, owner) = (about.file_type(), about.uid());
    let is_own = is_trusted(owner) || user == Some(owner);
    if kind.is_char_device() {
        // /dev/null, and terminals. Only root makes devices, and in a user namespace, its number is another one.
        return Ok(file);
    }
    if !(kind.is_file() || kind.is_fifo()) {
        return Err(OpenError::Kind);
    }
    if !is_own {
        return Err(OpenError::Owner(owner));
    }
    if about.mode() & OTHERS != 0 {
        return Err(OpenError::Permissions(about.mode() & 0o777));
    }
    if about.nlink() > 1 {
        return Err(OpenError::Names(about.nlink()));
    }
    if kind.is_file() && !mode.appends {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Returns the reason not to trust a file that decides on rights, with the remedy. `None` if only root, this process's
/// user and the user that called sudo can change the file.
pub(crate) fn distrust_reason(about: &std::fs::Metadata) -> Option<String> {
    let (owner, bits) = (about.uid(), about.mode() & 0o777);
    if owner != 0 && !is_trusted(owner) {
        let user = rustix::process::geteuid().as_raw();
        return Some(format!("user {owner} owns it and can change it; chown it to user {user}"));
    }
    (bits & OTHERS_WRITE != 0).then(|| {
        format!(
            "its permissions are {bits:03o}, so that others can change it; run chmod go-w on it"
        )
    })
}

/// Returns `true` for this process's user, and for the user that called sudo.
fn is_trusted(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || Some(user) == sudo_user()
}

fn sudo_user() -> Option<u32> {
    std::env::var("SUDO_UID").ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::own_directory::Own;

    const ANEW: Mode = Mode { appends: false, nonblocking: true };

    fn with_bits(path: &Path, bits: u32) {
        fs::write(path, "before").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
    }

    #[test]
    fn a_new_file_and_one_of_this_user_are_for_this_user_only() {
        let directory = Own::new("private-new");
        let path = directory.0.join("file");
        for contents in ["first", "second"] {
            io::Write::write_all(&mut open(&path, ANEW, None).unwrap(), contents.as_bytes())
                .unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        }
        let more = Mode { appends: true, ..ANEW };
        io::Write::write_all(&mut open(&path, more, None).unwrap(), b" more").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second more");
        open(Path::new("/dev/null"), ANEW, None).unwrap();
    }

    /// Each refused file stays as it is.
    #[test]
    fn what_others_can_reach_is_refused() {
        let directory = Own::new("private-shared");
        let [target, link, shared, second] =
            ["target", "link", "shared", "second"].map(|name| directory.0.join(name));
        with_bits(&target, 0o600);
        symlink(&target, &link).unwrap();
        assert!(matches!(open(&link, ANEW, None), Err(OpenError::Link)));
        fs::hard_link(&target, &second).unwrap();
        assert!(matches!(open(&second, ANEW, None), Err(OpenError::Names(2))));
        for bits in [0o644, 0o620, 0o602] {
            with_bits(&shared, bits);
            let found = open(&shared, ANEW, None);
            assert!(matches!(found, Err(OpenError::Permissions(is)) if is == bits), "{found:?}");
        }
        for path in [&target, &shared] {
            assert_eq!(fs::read_to_string(path).unwrap(), "before");
        }
        let fifo = directory.0.join("fifo");
        let bits = rustix::fs::Mode::RUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, bits, 0).unwrap();
        // Whatever the umask is.
        fs::set_permissions(&fifo, fs::Permissions::from_mode(0o644)).unwrap();
        let reader =
            OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        assert!(matches!(open(&fifo, ANEW, None), Err(OpenError::Permissions(0o644))));
        // No open waits for a reader.
        fs::set_permissions(&fifo, fs::Permissions::from_mode(0o600)).unwrap();
        drop(reader);
        for nonblocking in [true, false] {
            let mode = Mode { nonblocking, ..ANEW };
            let Err(OpenError::Io(error)) = open(&fifo, mode, None) else { panic!("no reader") };
            assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
        }
    }

    #[test]
    fn a_file_that_others_can_write_decides_nothing() {
        let directory = Own::new("private-policy");
        let path = directory.0.join("policy.toml");
        for (bits, is_safe) in [(0o600, true), (0o644, true), (0o664, false), (0o646, false)] {
            with_bits(&path, bits);
            let found = distrust_reason(&fs::metadata(&path).unwrap());
            assert_eq!(found.is_none(), is_safe, "{bits:03o}: {found:?}");
        }
        assert_eq!(distrust_reason(&fs::metadata("/").unwrap()), None, "root owns it");
    }
}
