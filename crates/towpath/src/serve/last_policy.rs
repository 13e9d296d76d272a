//! The last policy that was in force, in a memory file that outlives the server: the next server
//! falls back on it if the policy file has an error, or cannot be read.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;

/// The name of the file in the store.
pub(super) const LAST_POLICY: &str = "program-policy";

/// The longest policy, in bytes; more than a policy file may have.
const MOST_BYTES: u64 = 2 << 20;
/// The bytes of a number in front of the text: its length and 1, or 0 if there is no policy.
const LENGTH_BYTES: u64 = 8;

/// The file.
#[derive(Debug)]
pub(super) struct LastPolicy(File);

impl LastPolicy {
    /// Makes an empty file.
    ///
    /// # Errors
    /// If there is no memory or descriptor.
    pub(super) fn new() -> io::Result<LastPolicy> {
        let file = rustix::fs::memfd_create("towpath-policy", MemfdFlags::CLOEXEC)?;
        Ok(LastPolicy(file.into()))
    }

    /// Goes on with the file of an earlier server.
    pub(super) fn of_earlier(file: OwnedFd) -> LastPolicy {
        LastPolicy(file.into())
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

impl AsFd for LastPolicy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_text_is_found() {
        let policy = LastPolicy::new().unwrap();
        assert_eq!(policy.text(), None);
        for text in ["[[grant]]\nusers = [\"ä\"]\n", "x", ""] {
            policy.set(text);
            let next = LastPolicy::of_earlier(policy.as_fd().try_clone_to_owned().unwrap());
            assert_eq!(next.text().as_deref(), Some(text));
        }
        // Killed after the first store, and a length that is none.
        for length in [0, 101, u64::MAX] {
            policy.set("text");
            policy.0.write_all_at(&length.to_ne_bytes(), 0).unwrap();
            assert_eq!(policy.text(), None, "{length}");
        }
    }
}
