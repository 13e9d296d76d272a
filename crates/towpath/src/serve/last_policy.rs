//! The last policy that was in force, in a memory file that outlives the server: the next server
//! falls back on it if the policy file has an error, or cannot be read.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use towpath_memory::SharedFile;

/// The name of the file in the store.
pub(super) const LAST_POLICY: &str = "program-policy";

/// The longest policy, in bytes; more than a policy file may have.
const MOST_BYTES: u64 = 2 << 20;
/// The bytes of a number in front of the text: its length and 1, or 0 if there is no policy.
const LENGTH_BYTES: u64 = 8;

/// The file. Its length is fixed, and no process can add a seal to it. So a process that a server left behind can
/// neither make the file grow nor prevent that the next server writes it.
#[derive(Debug)]
pub(super) struct LastPolicy(File);

impl LastPolicy {
    /// Makes an empty file.
    ///
    /// # Errors
    /// If there is no memory or descriptor.
    pub(super) fn new() -> io::Result<LastPolicy> {
        let file = SharedFile::create("towpath-policy", (LENGTH_BYTES + MOST_BYTES) as usize)?;
        file.seal_seals()?;
        Ok(LastPolicy(OwnedFd::from(file).into()))
    }

    /// Goes on with the file of an earlier server.
    ///
    /// # Errors
    /// Returns the text if the file is not sealed as [`LastPolicy::new`] seals it. Earlier versions did not seal it.
    pub(super) fn of_earlier(file: OwnedFd) -> Result<LastPolicy, Option<String>> {
        let is_sealed = is_sealed(&file);
        let policy = LastPolicy(file.into());
        if is_sealed { Ok(policy) } else { Err(policy.text()) }
    }

    /// Returns the text; `None` if there is none, or if a server was killed while it wrote it.
    pub(super) fn text(&self) -> Option<String> {
        let mut length = [0; LENGTH_BYTES as usize];
        self.0.read_exact_at(&mut length, 0).ok()?;
        let length = u64::from_ne_bytes(length).checked_sub(1)?;
        if length > MOST_BYTES {
            return None;
        }
        let mut text = vec![0; length as usize];
        self.0.read_exact_at(&mut text, LENGTH_BYTES).ok()?;
        String::from_utf8(text).ok()
    }

    /// Notes the text of a policy that is in force. An error leaves none: then the next server has only
    /// the policy file.
    pub(super) fn set(&self, text: &str) {
        let length = text.len() as u64 + 1;
        let _ = self.0.write_all_at(&0u64.to_ne_bytes(), 0).and_then(|()| {
            self.0.write_all_at(text.as_bytes(), LENGTH_BYTES)?;
            self.0.write_all_at(&length.to_ne_bytes(), 0)
        });
    }
}

/// Returns `true` if a file has the length and the seals of a new one, and no seal against writing.
fn is_sealed(file: &OwnedFd) -> bool {
    let has = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let lacks = SealFlags::WRITE | SealFlags::FUTURE_WRITE;
    let seals = fcntl_get_seals(file).unwrap_or(SealFlags::empty());
    let is_long = fstat(file).is_ok_and(|about| about.st_size as u64 >= LENGTH_BYTES + MOST_BYTES);
    seals.contains(has) && !seals.intersects(lacks) && is_long
}

impl AsFd for LastPolicy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::MemfdFlags;

    use super::*;

    #[test]
    fn the_last_text_is_found() {
        let policy = LastPolicy::new().unwrap();
        assert_eq!(policy.text(), None);
        for text in ["[[grant]]\nusers = [\"ä\"]\n", "x", ""] {
            policy.set(text);
            let next = LastPolicy::of_earlier(policy.as_fd().try_clone_to_owned().unwrap());
            assert_eq!(next.unwrap().text().as_deref(), Some(text));
        }
        // Killed after the first store, and a length that is none.
        for length in [0, MOST_BYTES + 2, u64::MAX] {
            policy.set("text");
            policy.0.write_all_at(&length.to_ne_bytes(), 0).unwrap();
            assert_eq!(policy.text(), None, "{length}");
        }
    }

    #[test]
    fn no_process_changes_the_length_or_the_seals() {
        let policy = LastPolicy::new().unwrap();
        for length in [0, 64 << 20] {
            let denied = policy.0.set_len(length).unwrap_err();
            assert_eq!(denied.raw_os_error(), Some(libc::EPERM), "{length}");
        }
        let denied = rustix::fs::fcntl_add_seals(&policy, SealFlags::WRITE).unwrap_err();
        assert_eq!(denied, rustix::io::Errno::PERM);
    }

    /// Files of earlier versions, of another length, and against writing.
    #[test]
    fn of_a_file_that_is_sealed_otherwise_only_the_text_is_used() {
        let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let bytes = LENGTH_BYTES + MOST_BYTES;
        for (seals, length) in [
            (SealFlags::empty(), 0),
            (SealFlags::SEAL, bytes),
            (all, 4096),
            (all | SealFlags::WRITE, bytes),
            (all | SealFlags::FUTURE_WRITE, bytes),
        ] {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("towpath-policy", flags).unwrap();
            let policy = LastPolicy(file.into());
            policy.0.set_len(length).unwrap();
            policy.set("text");
            rustix::fs::fcntl_add_seals(&policy, seals).unwrap();
            let earlier = LastPolicy::of_earlier(policy.0.into()).map(|policy| policy.text());
            assert_eq!(earlier, Err(Some("text".to_owned())), "{seals:?}, {length}");
        }
    }
}
