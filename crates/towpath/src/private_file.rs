//! Files that a privileged program opens by paths in directories where other users may write.
//!
//! Another user may have put a symbolic link, a hard link or a file into the path's place. The program would then
//! overwrite a file that the other user cannot write, or let the other user read the written data.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstat, openat};
use rustix::io::Errno;

use crate::failure::says;
use crate::trusted_path::{self, Place, WayError};
use crate::trusted_user::{OTHERS_WRITE, decides, is_trusted};

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
    #[error(
        "other users may make names in its directory, and this kernel lets them link to files of other users; remove it, \
         choose a directory in which only you write, or set the sysctl fs.protected_hardlinks to 1"
    )]
    Linkable,
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
    open_where(path, mode, user, hard_links_are_protected())
}

/// Opens as [`open`] does. `protected`: the kernel lets no user make a hard link to a file of another user.
fn open_where(
    path: &Path,
    mode: Mode,
    user: Option<u32>,
    protected: bool,
) -> Result<File, OpenError> {
    let place = trusted_path::find(path)?;
    let (file, is_new) = open_or_make(&place, mode)?;
    check(&file, user)?;
    // The count of names may be wrong: another user can link a name here to a file elsewhere, and remove the name
    // between the open and the check.
    if !is_new && file.metadata()?.is_file() && !protected && others_write(&place.directory)? {
        return Err(OpenError::Linkable);
    }
    if !mode.nonblocking {
        let flags = fcntl_getfl(&file).map_err(io::Error::from)?;
        fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(io::Error::from)?;
    }
    if file.metadata()?.is_file() && !mode.appends {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a file, or makes it. Returns `true` with a new one.
fn open_or_make(place: &Place, mode: Mode) -> Result<(File, bool), OpenError> {
    let appends = if mode.appends { OFlags::APPEND } else { OFlags::empty() };
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | appends;
    let bits = rustix::fs::Mode::from_raw_mode(0o600);
    let open = |flags| openat(&place.directory, &place.name, flags, bits).map(File::from);
    // A file that comes or goes between the calls is another user's game, or an error of this user.
    let opened = match open(flags | OFlags::CREATE | OFlags::EXCL) {
        Err(Errno::EXIST) => open(flags).map(|file| (file, false)),
        made => made.map(|file| (file, true)),
    };
    opened.map_err(|errno| match errno {
        Errno::LOOP => OpenError::Link,
        errno => io::Error::from(errno).into(),
    })
}

/// Returns `true` if a user who is not trusted may make and remove names in a directory.
fn others_write(directory: impl AsFd) -> io::Result<bool> {
    let about = fstat(&directory)?;
    Ok(about.st_mode & OTHERS_WRITE != 0 || !decides(about.st_uid, directory)?)
}

/// Returns `true` if the kernel lets no user make a hard link to a file of another user (proc(5)).
fn hard_links_are_protected() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/fs/protected_hardlinks");
    setting.is_ok_and(|value| value.trim() == "1")
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
    use std::sync::atomic::{AtomicBool, Ordering};

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

    /// Opens a path again and again while a thread changes what has the name. Returns how often `open_where` opened a
    /// file and how often it refused one.
    fn race(path: &Path, protected: bool, swap: impl Fn() + Send + Sync) -> (u32, u32) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    swap();
                }
            });
            let mut counts = (0, 0);
            for _ in 0..ROUNDS {
                match open_where(path, ANEW, None, protected) {
                    Ok(_) => counts.0 += 1,
                    Err(_) => counts.1 += 1,
                }
            }
            is_over.store(true, Ordering::Relaxed);
            counts
        })
    }

    const ROUNDS: u32 = 5_000;

    /// Changes what has a name.
    type Swap<'a> = Box<dyn Fn() + Send + Sync + 'a>;

    /// The swapping thread stands for another user whom the kernel lets link to any file.
    #[test]
    fn a_target_that_is_swapped_in_is_never_opened() {
        let directory = Own::new("private-race");
        let [target, path, other] =
            ["target", "common/path", "common/other"].map(|name| directory.0.join(name));
        fs::create_dir(directory.0.join("common")).unwrap();
        fs::set_permissions(directory.0.join("common"), fs::Permissions::from_mode(0o777)).unwrap();
        with_bits(&target, 0o600);
        let swaps: [(&str, Swap<'_>); 3] = [
            (
                "hard link",
                Box::new(|| {
                    let _ = fs::hard_link(&target, &path);
                    let _ = fs::remove_file(&path);
                }),
            ),
            (
                "symbolic link",
                Box::new(|| {
                    let _ = symlink(&target, &path);
                    let _ = fs::remove_file(&path);
                }),
            ),
            (
                "a file, a link and another name in turn",
                Box::new(|| {
                    let _ = fs::write(&path, "own");
                    let _ = fs::remove_file(&path);
                    let _ = fs::hard_link(&target, &path);
                    let _ = fs::rename(&path, &other);
                    let _ = fs::remove_file(&other);
                    let _ = symlink(&target, &path);
                    let _ = fs::remove_file(&path);
                }),
            ),
        ];
        for (name, swap) in swaps {
            let (opened, refused) = race(&path, false, swap);
            assert_eq!(fs::read_to_string(&target).unwrap(), "before", "{name}");
            assert_eq!(opened + refused, ROUNDS);
            assert!(refused > 0, "{name}: nothing was swapped: {opened}");
            let _ = fs::remove_file(&path);
        }
    }

    #[test]
    fn an_existing_file_where_others_make_names_needs_protected_links() {
        let directory = Own::new("private-names");
        let path = directory.0.join("file");
        with_bits(&path, 0o600);
        let set =
            |bits| fs::set_permissions(&directory.0, fs::Permissions::from_mode(bits)).unwrap();
        for (bits, protected, is_refused) in [
            (0o755, false, false),
            (0o775, false, true),
            (0o1777, false, true),
            (0o1777, true, false),
        ] {
            set(bits);
            let found = open_where(&path, ANEW, None, protected);
            assert_eq!(
                matches!(found, Err(OpenError::Linkable)),
                is_refused,
                "{bits:o}, {protected}"
            );
            assert_eq!(found.is_err(), is_refused);
        }
        fs::remove_file(&path).unwrap();
        open_where(&path, ANEW, None, false).unwrap();
        set(0o755);
    }
}
