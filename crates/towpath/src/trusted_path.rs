//! The way to a file through directories in which other users may write.
//!
//! The kernel follows the symbolic links of all users on the way. A user could thus lead a privileged program from a
//! directory of its own to a file in another directory. This module follows only links whose makers are trusted.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, fstat, fstatfs, openat, readlinkat,
};
use rustix::io::Errno;

use crate::trusted_user::decides;

/// The most links on the way, as the kernel's limit (`MAXSYMLINKS` in linux/namei.h).
const MOST_LINKS: usize = 40;

/// The reason for which the way to a file is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WayError {
    #[error("{} is a symbolic link of user {owner}, which that user can change; name the target itself", .link.display())]
    Link { link: PathBuf, owner: u32 },
    #[error("{} is a link of /proc, which leads to more than a path; name the target itself", .0.display())]
    Proc(PathBuf),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The directory of a file, and the file's name in it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) directory: OwnedFd,
    pub(crate) name: OsString,
}

/// Finds the directory of a path. Follows the links of root, of this process's user and of the user that called sudo,
/// and of no other user. Does not follow a link at the end of the path.
pub(crate) fn find(path: &Path) -> Result<Place, WayError> {
    let mut walk = Walk::new(path)?;
    walk.walk_to_last()?;
    Ok(walk.place())
}

/// Finds the directory of a path as [`find`] does, and follows links also at the end of the path.
pub(crate) fn find_target(path: &Path) -> Result<Place, WayError> {
    let mut walk = Walk::new(path)?;
    loop {
        walk.walk_to_last()?;
        let Some(last) = walk.left.front().cloned() else { return Ok(walk.place()) };
        match walk.look_at(&last)? {
            Some(Found::Link(target)) => {
                walk.left.pop_front();
                walk.prepend(&target)?;
            }
            // A missing file, too.
            _ => return Ok(walk.place()),
        }
    }
}

/// A walk along a path.
struct Walk {
    directory: OwnedFd,
    /// The components that are left.
    left: VecDeque<OsString>,
    links: usize,
    /// The way so far, for errors.
    way: PathBuf,
}

/// What has a name.
enum Found {
    /// A link of a trusted user, and its target.
    Link(PathBuf),
    Other(OwnedFd, FileType),
}

impl Walk {
    fn new(path: &Path) -> Result<Walk, WayError> {
        // The working directory may be closed to this user, and matters only to a relative path.
        let start = if path.is_absolute() { "/" } else { "." };
        let directory = open_at(CWD, OsStr::new(start))?;
        let mut walk = Walk { directory, left: VecDeque::new(), links: 0, way: PathBuf::new() };
        walk.prepend(path)?;
        Ok(walk)
    }

    fn place(mut self) -> Place {
        let name = self.left.pop_front().unwrap_or_else(|| OsString::from("."));
        Place { directory: self.directory, name }
    }

    /// Puts a path before the components that are left.
    fn prepend(&mut self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() {
            return Err(Errno::NOENT.into());
        }
        if path.is_absolute() {
            self.directory = open_at(CWD, OsStr::new("/"))?;
            self.way = PathBuf::from("/");
        }
        for component in path.components().rev() {
            match component {
                Component::Normal(name) => self.left.push_front(name.to_os_string()),
                Component::ParentDir => self.left.push_front(OsString::from("..")),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        Ok(())
    }

    /// Walks until at most one component is left.
    fn walk_to_last(&mut self) -> Result<(), WayError> {
        while self.left.len() > 1 {
            let Some(name) = self.left.pop_front() else { break };
            match self.look_at(&name)? {
                None => return Err(io::Error::from(Errno::NOENT).into()),
                Some(Found::Link(target)) => self.prepend(&target)?,
                Some(Found::Other(directory, FileType::Directory)) => {
                    self.directory = directory;
                    self.way.push(&name);
                }
                Some(Found::Other(..)) => return Err(io::Error::from(Errno::NOTDIR).into()),
            }
        }
        Ok(())
    }

    /// Returns what has a name here; `None` if nothing has it.
    fn look_at(&mut self, name: &OsStr) -> Result<Option<Found>, WayError> {
        // From here on, another file may get the name.
        let found = match open_at(&self.directory, name) {
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let about = fstat(&found).map_err(io::Error::from)?;
        let kind = FileType::from_raw_mode(about.st_mode);
        if kind != FileType::Symlink {
            return Ok(Some(Found::Other(found, kind)));
        }
        let owner = about.st_uid;
        let link = || self.way.join(name);
        if !decides(owner, &self.directory)? {
            return Err(WayError::Link { link: link(), owner });
        }
        if fstatfs(&found).map_err(io::Error::from)?.f_type == PROC_SUPER_MAGIC {
            return Err(WayError::Proc(link()));
        }
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(io::Error::from(Errno::LOOP).into());
        }
        let target = readlinkat(&found, "", Vec::new()).map_err(io::Error::from)?;
        Ok(Some(Found::Link(PathBuf::from(OsStr::from_bytes(target.to_bytes())))))
    }
}

/// Opens a file only to look at it; a link itself.
fn open_at(from: impl AsFd, name: &OsStr) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(from, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{RenameFlags, renameat_with};

    use super::*;
    use crate::own_directory::Own;

    /// Returns the contents of the file at a place.
    fn contents(place: &Place) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&place.directory, &place.name, flags, Mode::empty())?;
        io::read_to_string(fs::File::from(file))
    }

    #[test]
    fn own_links_are_followed() {
        let Own(own) = &Own::new("trusted-links");
        fs::create_dir_all(own.join("a/b")).unwrap();
        fs::write(own.join("a/b/file"), "text").unwrap();
        symlink("b", own.join("a/relative")).unwrap();
        symlink(own.join("a"), own.join("absolute")).unwrap();
        symlink("relative/../relative/file", own.join("a/last")).unwrap();
        symlink("loop", own.join("loop")).unwrap();
        for way in ["a/b/file", "absolute/relative/file", "a/../absolute/./b/file"] {
            assert_eq!(contents(&find(&own.join(way)).unwrap()).unwrap(), "text", "{way}");
        }
        let last = own.join("absolute/last");
        assert!(contents(&find(&last).unwrap()).is_err(), "the end is a link");
        assert_eq!(contents(&find_target(&last).unwrap()).unwrap(), "text");
        let new = find_target(&own.join("absolute/new")).unwrap();
        assert_eq!(new.name, "new");
        for (way, errno) in
            [("loop/x", Errno::LOOP), ("a/b/file/x", Errno::NOTDIR), ("no/x", Errno::NOENT)]
        {
            let found = find(&own.join(way));
            let Err(WayError::Io(error)) = &found else { panic!("{way}: {found:?}") };
            assert_eq!(Errno::from_io_error(error), Some(errno), "{way}");
        }
        assert!(find(Path::new("")).is_err());
    }

    #[test]
    fn links_of_other_users_are_not_followed() {
        const OTHER: u32 = 61_000;
        let Own(own) = &Own::new("trusted-places");
        fs::create_dir(own.join("target")).unwrap();
        symlink("target", own.join("theirs")).unwrap();
        let made = std::os::unix::fs::lchown(own.join("theirs"), Some(OTHER), None);
        if made.is_err() {
            println!(
                "SKIP links_of_other_users_are_not_followed: only root gives files to others; run as root"
            );
            return;
        }
        chown(own.join("target"), Some(OTHER), None).unwrap();
        assert!(find(&own.join("target/file")).is_ok(), "a directory leads nowhere else");
        for found in [find(&own.join("theirs/file")), find_target(&own.join("theirs"))] {
            assert!(matches!(&found, Err(WayError::Link { owner: OTHER, .. })), "{found:?}");
        }
        assert!(find(&own.join("theirs")).is_ok(), "the caller opens no link");
    }

    /// A thread exchanges a directory and another user's link to a different directory.
    #[test]
    fn a_link_that_is_swapped_in_is_never_followed() {
        const OTHER: u32 = 61_000;
        let Own(own) = &Own::new("trusted-race");
        for (directory, text) in [("target", "secret"), ("way", "harmless")] {
            fs::create_dir(own.join(directory)).unwrap();
            fs::write(own.join(directory).join("file"), text).unwrap();
        }
        symlink("target", own.join("link")).unwrap();
        if std::os::unix::fs::lchown(own.join("link"), Some(OTHER), None).is_err() {
            println!(
                "SKIP a_link_that_is_swapped_in_is_never_followed: only root gives files to others; run as root"
            );
            return;
        }
        let (way, is_over) = (own.join("way"), AtomicBool::new(false));
        let mut counts = [0; 2];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    renameat_with(CWD, &way, CWD, own.join("link"), RenameFlags::EXCHANGE).unwrap();
                }
            });
            for _ in 0..5_000 {
                match find(&way.join("file")) {
                    Ok(place) => {
                        assert_eq!(contents(&place).unwrap(), "harmless");
                        counts[0] += 1;
                    }
                    Err(WayError::Link { owner: OTHER, .. }) => counts[1] += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| *count > 0), "nothing was swapped: {counts:?}");
    }
}
