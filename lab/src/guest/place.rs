//! The directory with the files of one machine.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;

/// A directory of a machine's own, which is removed with this. The path of a socket has at most 107
/// bytes, so it lies in the system's directory for temporary files.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    name: String,
}

impl Place {
    pub(super) fn new() -> anyhow::Result<Place> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(format!("towpath-guest-{name}"));
        let _ = fs::remove_dir_all(&path);
        let created = fs::DirBuilder::new().mode(0o700).create(&path);
        created.with_context(|| path.display().to_string())?;
        Ok(Place { path, name })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a name that no other machine has now.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
