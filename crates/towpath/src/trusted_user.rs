//! The users whose files, links and settings the command trusts.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use towpath_protocol::peer::{OVERFLOW_UID, every_user_has_a_number};

/// The permission bits by which users other than the owner write.
pub(crate) const OTHERS_WRITE: u32 = 0o022;

/// Returns the reason not to trust a file that decides on rights, with the remedy. `None` if only root, this process's
/// user and the user that called sudo can change the file.
pub(crate) fn distrust_reason(about: &std::fs::Metadata, directory: impl AsFd) -> Option<String> {
    let (owner, bits) = (about.uid(), about.mode() & 0o777);
    if !decides(owner, directory).unwrap_or(false) {
        let user = rustix::process::geteuid().as_raw();
        return Some(format!("user {owner} owns it and can change it; chown it to user {user}"));
    }
    (bits & OTHERS_WRITE != 0).then(|| {
        format!(
            "its permissions are {bits:03o}, so that others can change it; run chmod go-w on it"
        )
    })
}

/// Returns `true` if the command follows the links and settings of a user in a directory: of root, of this process's
/// user and of the user that called sudo. In a user namespace, also of users outside of it, in a directory where no
/// other user writes: the maker of the namespace decides which directories are there.
pub(crate) fn decides(user: u32, directory: impl AsFd) -> io::Result<bool> {
    if user == 0 || is_trusted(user) {
        return Ok(true);
    }
    if user != OVERFLOW_UID || every_user_has_a_number() {
        return Ok(false);
    }
    Ok(rustix::fs::fstat(directory)?.st_mode & OTHERS_WRITE == 0)
}

/// Returns `true` for this process's user, and for the user that called sudo.
pub(crate) fn is_trusted(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || Some(user) == sudo_user()
}

fn sudo_user() -> Option<u32> {
    std::env::var("SUDO_UID").ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::own_directory::{Own, with_bits};

    #[test]
    fn a_file_that_others_can_write_decides_nothing() {
        let directory = Own::new("trusted-user");
        let path = directory.0.join("policy.toml");
        for (bits, is_safe) in [(0o600, true), (0o644, true), (0o664, false), (0o646, false)] {
            with_bits(&path, bits);
            let place = fs::File::open(&directory.0).unwrap();
            let found = distrust_reason(&fs::metadata(&path).unwrap(), &place);
            assert_eq!(found.is_none(), is_safe, "{bits:03o}: {found:?}");
        }
        let root = fs::File::open("/").unwrap();
        assert_eq!(distrust_reason(&fs::metadata("/").unwrap(), &root), None, "root owns it");
    }
}
