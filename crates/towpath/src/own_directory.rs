//! Directories for tests.

use std::fs;
use std::path::PathBuf;

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
