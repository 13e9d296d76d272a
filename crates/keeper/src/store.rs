//! The store of a server that has a keeper.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::SendFlags;
use towpath_protocol::store::{Store, copies};

use super::client::KeeperAccess;
use super::notify;
use super::wire::{is_gone, send};

/// A store whose content outlives the server: the keeper has a copy of each descriptor.
///
/// Once the keeper has ended, the store continues with only its own copies, until the server has ended,
/// too.
#[derive(Debug)]
pub struct KeeperStore {
    keeper: KeeperAccess,
    kept: BTreeMap<String, Vec<OwnedFd>>,
    /// The names, and numbers of descriptors, of removals that the connection has no room for yet.
    unsent: VecDeque<(String, usize)>,
}

impl KeeperStore {
    /// Makes the store of a server with this keeper. `left`: copies of the descriptors that the
    /// keeper holds already, from [`KeeperAccess::new`].
    #[must_use]
    pub fn new(keeper: &KeeperAccess, left: Vec<(String, OwnedFd)>) -> KeeperStore {
        let mut kept = BTreeMap::<_, Vec<_>>::new();
        for (name, one) in left {
            kept.entry(name).or_default().push(one);
        }
        KeeperStore { keeper: keeper.clone(), kept, unsent: VecDeque::new() }
    }

    /// Sends the removals that wait. With `DONTWAIT`, stops where the connection has no room.
    fn send_removals(&mut self, flags: SendFlags) -> Result<(), Errno> {
        while let Some((name, count)) = self.unsent.front() {
            let text = notify::remove(name);
            match send(&self.keeper.socket, text.as_bytes(), &[], flags) {
                Err(errno) if !is_gone(errno) => return Err(errno),
                // A keeper that has ended holds nothing.
                _ => self.keeper.room.give_back(*count),
            }
            self.unsent.pop_front();
        }
        Ok(())
    }

    /// Waits until the keeper has handled every message before.
    ///
    /// # Errors
    /// Fails if the keeper does not answer for 5 s.
    pub fn barrier(&mut self) -> io::Result<()> {
        self.send_removals(SendFlags::empty())?;
        self.keeper.barrier()
    }

    fn send_copy(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        // In order: a removal may be for the same name.
        let removals = self.send_removals(SendFlags::empty());
        removals.map_err(io::Error::from).and_then(|()| self.keeper.send_copy(name, descriptor))
    }
}

impl Store for KeeperStore {
    fn put(&mut self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        if !notify::is_name(name) {
            let text = format!(
                "{name:?} is no name for a stored descriptor; use 1 to 255 printable ASCII characters \
                 without a colon"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let copy = descriptor.try_clone_to_owned()?;
        // Room that is given back by removals counts.
        let _ = self.send_removals(SendFlags::DONTWAIT);
        self.send_copy(name, copy.as_fd())?;
        self.kept.entry(name.to_owned()).or_default().push(copy);
        Ok(())
    }

    fn remove(&mut self, name: &str) -> Vec<OwnedFd> {
        let removed = self.kept.remove(name).unwrap_or_default();
        if !removed.is_empty() {
            self.unsent.push_back((name.to_owned(), removed.len()));
        }
        // `flush` sends the removals that remain.
        let _ = self.send_removals(SendFlags::DONTWAIT);
        removed
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

    fn flush(&mut self) -> bool {
        let _ = self.send_removals(SendFlags::DONTWAIT);
        !self.unsent.is_empty()
    }

    fn outlives_server(&self) -> bool {
        true
    }

    fn end_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.keeper.socket.as_fd())
    }
}
