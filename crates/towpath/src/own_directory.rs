//! Directories and files for tests.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A directory for one test, which its drop removes.
pub(crate) struct Own(pub(crate) PathBuf);

impl Own {
    /// Makes the directory. `name`: a name that no other test has.
    pub(crate) fn new(name: &str) -> Own {
        let path = std::env::temp_dir().join(format!("towpath-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Own(path)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Writes a file with these permissions.
pub(crate) fn with_bits(path: &Path, bits: u32) {
    fs::write(path, "before").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
}
