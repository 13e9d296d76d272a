//! A store of objects that must outlive a driver server.
//!
//! The protocol is that of systemd's descriptor store: a server stores descriptors under names, and
//! its successor gets all of them at its start. `docs/restart.md` in the repository lists what a server stores.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Keeps descriptors under names.
pub trait Store: Send {
    /// Keeps a duplicate of the descriptor. Several descriptors may have one name, and keep their
    /// order.
    ///
    /// # Errors
    /// If the store cannot keep the descriptor: the object would then not outlive the server.
    fn put(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()>;

    /// Removes everything under a name. Returns the descriptors that the store itself held: the
    /// last close of one may take long, so the caller decides when and where to close it.
    fn remove(&mut self, name: &str) -> Vec<OwnedFd>;

    /// Closes this process' own copies of everything under a name. The successor still gets what is
    /// kept outside this process.
    fn forget(&mut self, name: &str);

    /// Returns copies of all descriptors in the store, with their names. At the start of a server,
    /// these are its predecessor's. The store keeps its own.
    ///
    /// # Errors
    /// If the process has no free descriptor (`EMFILE`).
    fn contents(&self) -> io::Result<Vec<(String, OwnedFd)>>;

    /// Returns `true` if the store keeps something under a name.
    fn holds(&self, name: &str) -> bool;

    /// Returns `true` if the content outlives a server that is killed.
    fn outlives_server(&self) -> bool {
        false
    }

    /// Goes on with removals that had to wait. Returns `true` if some still do: the caller calls this
    /// again soon.
    fn flush(&mut self) -> bool {
        false
    }

    /// Returns a descriptor that hangs up when the store cannot keep anything any more; `None` for
    /// a store that ends with its process.
    fn end_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A store in the process' own memory. Its content is lost with the process. A process that
/// outlives an embedded server may pass the store to the next one.
#[derive(Debug, Default)]
pub struct MemoryStore {
    kept: BTreeMap<String, Vec<OwnedFd>>,
}

impl MemoryStore {
    /// Returns the number of descriptors in the store.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kept.values().map(Vec::len).sum()
    }

    /// `true` if the store is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

impl Store for MemoryStore {
    fn put(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let kept = descriptor.as_fd().try_clone_to_owned()?;
        self.kept.entry(name.to_owned()).or_default().push(kept);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Vec<OwnedFd> {
        self.kept.remove(name).unwrap_or_default()
    }

    fn forget(&mut self, name: &str) {
        self.kept.remove(name);
    }

    fn contents(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        copies(&self.kept)
    }

    fn holds(&self, name: &str) -> bool {
        self.kept.contains_key(name)
    }
}

/// Returns copies of descriptors with their names.
///
/// # Errors
/// If the process has no free descriptor (`EMFILE`).
pub fn copies(kept: &BTreeMap<String, Vec<OwnedFd>>) -> io::Result<Vec<(String, OwnedFd)>> {
    let named = kept.iter().flat_map(|(name, all)| all.iter().map(move |one| (name, one)));
    named.map(|(name, one)| Ok((name.clone(), one.try_clone()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_remove_and_take() {
        let mut store = MemoryStore::default();
        let (a, b) = rustix::pipe::pipe().unwrap();
        store.put("session-1", a.as_fd()).unwrap();
        store.put("session-1", b.as_fd()).unwrap();
        store.put("session-2", a.as_fd()).unwrap();
        assert_eq!(store.len(), 3);
        assert_eq!(store.remove("session-2").len(), 1);
        assert!(store.remove("session-2").is_empty());
        let names: Vec<_> = store.contents().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["session-1", "session-1"]);
        assert!(store.holds("session-1") && !store.holds("session-2"));
        assert_eq!(store.len(), 2, "it keeps what it told");
    }
}
