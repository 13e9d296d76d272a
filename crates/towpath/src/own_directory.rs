//! A directory for one test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory for one test.
pub(crate) struct Own(pub(crate) PathBuf);

impl Own {
    pub(crate) fn new() -> Own {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("towpath-private-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Own(path)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Writes a file with these permissions.
pub(crate) fn with_bits(path: &Path, bits: u32) {
    fs::write(path, "before").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
}
