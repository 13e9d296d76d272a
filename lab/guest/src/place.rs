//! The directory with the files of one machine.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

/// How the names of such directories begin.
const PREFIX: &str = "towpath-guest-";
/// The file that a directory's process has locked.
const LOCK: &str = "lock";

/// A directory of a machine's own, which is removed with this, or by the next machine if the process
/// was killed.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    name: String,
    _lock: File,
}

impl Place {
    /// Makes a directory in another one.
    pub(crate) fn new(parent: &Path) -> anyhow::Result<Place> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        remove_left(parent);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{}-{number}", std::process::id());
            let path = parent.join(format!("{PREFIX}{name}"));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => {
                    let lock = created.and_then(|()| File::create(path.join(LOCK)));
                    let lock = lock.and_then(|lock| lock.lock().map(|()| lock));
                    let lock = lock.with_context(|| path.display().to_string())?;
                    return Ok(Place { path, name, _lock: lock });
                }
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a name that no other machine of this host has now.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the directories of killed processes.
fn remove_left(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_place = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let lock = File::open(entry.path().join(LOCK)).ok().filter(|_| is_place);
        if lock.is_some_and(|lock| lock.try_lock().is_ok()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_killed_processes_are_removed() {
        let parent = Place::new(&std::env::temp_dir()).unwrap();
        let (one, other) = (Place::new(parent.path()).unwrap(), Place::new(parent.path()).unwrap());
        let left = parent.path().join(format!("{PREFIX}1-0"));
        fs::create_dir(&left).unwrap();
        fs::write(left.join(LOCK), "").unwrap();
        fs::write(parent.path().join("other"), "").unwrap();
        let third = Place::new(parent.path()).unwrap();
        let there = |place: &Place| place.path().is_dir();
        assert!(there(&one) && there(&other) && there(&third) && !left.exists());
        drop(other);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 4, "two, a lock and a file");
    }
}
