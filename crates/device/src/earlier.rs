//! Objects that the devices of earlier servers left for the next server's device.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::Keeper;

/// The descriptors of [`Device::objects`](crate::Device::objects) of earlier servers, with those
/// that the driver had a [`Keeper`](crate::Keeper) hold.
#[derive(Default)]
pub struct EarlierObjects {
    objects: Vec<Object>,
    /// `true` if a packet may have made the earlier server crash.
    after_crash: bool,
    keeper: Option<Arc<dyn Keeper>>,
}

impl std::fmt::Debug for EarlierObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EarlierObjects").field("objects", &self.objects).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Object {
    name: String,
    /// The number of the server that left it.
    server: u32,
    descriptor: OwnedFd,
}

impl EarlierObjects {
    /// Creates an empty set. `after_crash`: `true` if the last server crashed or hung. Packets that
    /// wait are then dropped, because one of them may be the cause.
    #[must_use]
    pub fn new(after_crash: bool) -> EarlierObjects {
        EarlierObjects { objects: Vec::new(), after_crash, keeper: None }
    }

    /// Adds an object, under its name and the number of the server that left it.
    pub fn add(&mut self, name: &str, server: u32, descriptor: OwnedFd) {
        self.objects.push(Object { name: name.to_owned(), server, descriptor });
    }

    /// Sets the keeper, which has copies of the objects.
    pub fn set_keeper(&mut self, keeper: Arc<dyn Keeper>) {
        self.keeper = Some(keeper);
    }

    pub(crate) fn keeper(&self) -> Option<&Arc<dyn Keeper>> {
        self.keeper.as_ref()
    }

    /// Returns the object of this name that the last server left.
    fn last(&self, name: &str) -> Option<BorrowedFd<'_>> {
        let named = self.objects.iter().filter(|one| one.name == name);
        named.max_by_key(|one| one.server).map(|one| one.descriptor.as_fd())
    }

    /// Returns a copy of the object of this name that a certain server left.
    ///
    /// # Errors
    /// If the process has no room for a descriptor.
    pub(crate) fn copy_of(&self, name: &str, server: u32) -> io::Result<Option<OwnedFd>> {
        let one = self.objects.iter().find(|one| one.name == name && one.server == server);
        one.map(|one| one.descriptor.try_clone()).transpose()
    }

    /// Returns a copy of the object of this name that the last server left.
    ///
    /// # Errors
    /// If the process has no room for a descriptor.
    pub fn copy(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        self.last(name).map(|one| one.try_clone_to_owned()).transpose()
    }

    /// Returns `true` if no earlier server left an object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns the number of objects of this name that are left.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.objects.iter().filter(|one| one.name == name).count()
    }

    /// Returns the objects whose names begin with `prefix`, with the rest of their names and the number
    /// of the server that left them.
    pub(crate) fn with_prefix(
        &self,
        prefix: &str,
    ) -> impl Iterator<Item = (&str, u32, BorrowedFd<'_>)> {
        self.objects.iter().filter_map(move |one| {
            Some((one.name.strip_prefix(prefix)?, one.server, one.descriptor.as_fd()))
        })
    }

    /// Takes out the objects whose names begin with `prefix`, with the rest of their names and the
    /// number of the server that left them.
    pub(crate) fn take_with_prefix(&mut self, prefix: &str) -> Vec<(String, u32, OwnedFd)> {
        let taken = self.objects.extract_if(.., |one| one.name.starts_with(prefix));
        taken.map(|one| (one.name[prefix.len()..].to_owned(), one.server, one.descriptor)).collect()
    }

    /// Returns `true` if packets that wait must be dropped.
    #[must_use]
    pub fn is_after_crash(&self) -> bool {
        self.after_crash
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn the_object_of_the_latest_server_is_returned() {
        let mut earlier = EarlierObjects::new(false);
        assert!(earlier.is_empty());
        let inode = |one: BorrowedFd<'_>| rustix::fs::fstat(one).unwrap().st_ino;
        let (old, new) = (File::open("/dev/null").unwrap(), File::open("/dev/zero").unwrap());
        let expected = inode(new.as_fd());
        earlier.add("device-a", 2, new.into());
        earlier.add("device-a", 1, old.try_clone().unwrap().into());
        earlier.add("device-b", 3, old.into());
        assert_eq!(earlier.last("device-a").map(inode), Some(expected));
        assert_eq!(earlier.copy("device-a").unwrap().map(|one| inode(one.as_fd())), Some(expected));
        assert_eq!((earlier.count("device-a"), earlier.count("device-c")), (2, 0));
        let kinds: Vec<_> =
            earlier.with_prefix("device-").map(|(rest, server, _)| (rest, server)).collect();
        assert_eq!(kinds, [("a", 2), ("a", 1), ("b", 3)]);
        assert_eq!(earlier.take_with_prefix("device-a").len(), 2);
        assert_eq!((earlier.count("device-a"), earlier.count("device-b")), (0, 1));
    }
}
