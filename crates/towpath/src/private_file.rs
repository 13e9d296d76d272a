//! Files that a privileged program opens by paths in directories where other users may write.
//!
//! Another user may have put a symbolic link, a hard link or a file into the path's place. The program would then
//! overwrite a file that the other user cannot write, or let the other user read the written data.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, openat};

use crate::failure::says;
use crate::trusted_path::{self, WayError};
use crate::trusted_user::is_trusted;

/// The permission bits of users other than the owner.
const OTHERS: u32 = 0o077;

/// The reason for which `open` refuses a file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error("it is a symbolic link; name the file itself (towpath capture: - for standard output)")]
    Link,
    #[error("it is neither a file nor a FIFO; choose another path")]
    Kind,
    #[error("user {0} owns it and could read the packets; remove it, or choose another path")]
    Owner(u32),
    #[error(
        "its permissions are {0:03o}, so other users may have opened it; remove it, or choose another path"
    )]
    Permissions(u32),
    #[error(
        "its permissions are {0:03o}, so other users may read from it; make it again with mkfifo -m 600"
    )]
    FifoPermissions(u32),
    #[error("the file has {0} names (hard links); remove this name, or choose another path")]
    Names(u64),
    #[error(transparent)]
    Way(WayError),
    #[error("{}; {}", says(.0), remedy(.0))]
    Io(#[from] io::Error),
}

impl From<WayError> for OpenError {
    fn from(error: WayError) -> OpenError {
        match error {
            WayError::Io(error) => OpenError::Io(error),
            link => OpenError::Way(link),
        }
    }
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
/// Waits neither for a reader of a FIFO (`ENXIO`) nor for the end of a lease (`EWOULDBLOCK`).
pub(crate) fn open(path: &Path, mode: Mode, user: Option<u32>) -> Result<File, OpenError> {
    let place = trusted_path::find(path)?;
    let appends = if mode.appends { OFlags::APPEND } else { OFlags::empty() };
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let bits = rustix::fs::Mode::from_raw_mode(0o600);
    let opened = openat(&place.directory, &place.name, flags | appends, bits);
    let file = opened.map(File::from).map_err(|errno| match errno {
        rustix::io::Errno::LOOP => OpenError::Link,
        errno => io::Error::from(errno).into(),
    })?;
    check(&file, user)?;
    if !mode.nonblocking {
        let flags = fcntl_getfl(&file).map_err(io::Error::from)?;
        fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(io::Error::from)?;
    }
    if file.metadata()?.is_file() && !mode.appends {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Checks that no other user has access to a file for packets.
fn check(file: &File, user: Option<u32>) -> Result<(), OpenError> {
    let about = file.metadata()?;
    let (kind, owner, bits) = (about.file_type(), about.uid(), about.mode() & 0o777);
    let is_own = is_trusted(owner) || user == Some(owner);
    if kind.is_char_device() {
        // /dev/null, and terminals. Only root makes devices, and in a user namespace, its number is another one.
        return Ok(());
    }
    if !(kind.is_file() || kind.is_fifo()) {
        return Err(OpenError::Kind);
    }
    if !is_own {
        return Err(OpenError::Owner(owner));
    }
    if bits & OTHERS != 0 {
        let of_fifo = kind.is_fifo();
        return Err(if of_fifo {
            OpenError::FifoPermissions(bits)
        } else {
            OpenError::Permissions(bits)
        });
    }
    if about.nlink() > 1 {
        return Err(OpenError::Names(about.nlink()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};

    use super::*;
    use crate::own_directory::{Own, with_bits};

    const ANEW: Mode = Mode { appends: false, nonblocking: true };

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
            fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        assert!(matches!(open(&fifo, ANEW, None), Err(OpenError::FifoPermissions(0o644))));
        // Neither waits.
        fs::set_permissions(&fifo, fs::Permissions::from_mode(0o600)).unwrap();
        drop(reader);
        for nonblocking in [true, false] {
            let mode = Mode { nonblocking, ..ANEW };
            let Err(OpenError::Io(error)) = open(&fifo, mode, None) else { panic!("no reader") };
            assert_eq!(error.raw_os_error(), Some(libc::ENXIO));
        }
    }
}
