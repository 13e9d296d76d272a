//! The descriptors that a keeper holds, under names.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Sender, channel};

use rustix::process::{Resource, getrlimit};

/// Descriptors that the keeper needs for itself: its sockets, those of a message and of a request.
const OWN_DESCRIPTORS: usize = 32;

/// The most descriptors that a keeper holds, whatever its limit of open files is.
const MAX_DESCRIPTORS: usize = 1 << 18;

/// The beginnings of names of objects that no application can reach, and whose close others wait for.
const AWAITED: [&str; 2] = ["device-socket-", "port-"];
/// The beginning of names of objects that no application can reach, and whose close may wait for an RCU
/// grace period.
const OF_DEVICE: &str = "device-";

/// Returns the most descriptors that this process can hold (`FileDescriptorStoreMax`, of this
/// store).
pub(super) fn limit() -> usize {
    let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open_files = usize::try_from(open_files).unwrap_or(usize::MAX);
    open_files.saturating_sub(OWN_DESCRIPTORS).min(MAX_DESCRIPTORS)
}

/// Descriptors under names. Several may have one name.
pub(super) struct Held {
    all: BTreeMap<String, Vec<OwnedFd>>,
    count: usize,
    limit: usize,
    /// The thread that closes objects that applications can reach; `None` until it starts.
    closer: Option<Sender<Vec<OwnedFd>>>,
    /// The thread that closes the devices' objects.
    device_closer: Option<Sender<Vec<OwnedFd>>>,
}

fn start_closer(name: &str) -> io::Result<Sender<Vec<OwnedFd>>> {
    let (closer, closing) = channel::<Vec<OwnedFd>>();
    let run = move || closing.into_iter().for_each(drop);
    std::thread::Builder::new().name(name.into()).spawn(run)?;
    Ok(closer)
}

impl Held {
    /// Holds at most `limit` descriptors.
    pub(super) fn new(limit: usize) -> Held {
        Held { all: BTreeMap::new(), count: 0, limit, closer: None, device_closer: None }
    }

    /// Starts the threads that close objects. A process calls this once it has given up its
    /// privileges: each thread has its own.
    ///
    /// # Errors
    /// Fails if no thread is available.
    pub(super) fn start_closers(&mut self) -> io::Result<()> {
        self.closer = Some(start_closer("closer")?);
        self.device_closer = Some(start_closer("device-closer")?);
        Ok(())
    }

    /// Returns `true` if there is room for another descriptor.
    pub(super) fn has_room(&self) -> bool {
        self.count < self.limit
    }

    /// Holds a descriptor under a name, and returns it. The caller has checked that there is room.
    pub(super) fn put(&mut self, name: String, descriptor: OwnedFd) -> Option<BorrowedFd<'_>> {
        self.count += 1;
        let all = self.all.entry(name).or_default();
        all.push(descriptor);
        all.last().map(AsFd::as_fd)
    }

    /// Closes everything under a name. An application can prolong the close of an object that it
    /// reaches, for example by record locks, so another thread closes these. A further one closes most
    /// objects of devices, since the keeper must hear of the server's end meanwhile.
    pub(super) fn remove(&mut self, name: &str) {
        let Some(removed) = self.all.remove(name) else { return };
        self.count -= removed.len();
        if AWAITED.iter().any(|start| name.starts_with(start)) {
            return;
        }
        if name.starts_with(OF_DEVICE) {
            let _ = self.device_closer.as_ref().map(|closer| closer.send(removed));
        } else {
            self.close(removed);
        }
    }

    /// Has the other thread close descriptors. Before [`Held::start_closers`], closes them itself.
    pub(super) fn close(&self, descriptors: Vec<OwnedFd>) {
        // The thread ends only after this value.
        let _ = self.closer.as_ref().map(|closer| closer.send(descriptors));
    }

    /// Returns all descriptors with their names, borrowed.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, BorrowedFd<'_>)> {
        let each = |(name, all)| <&Vec<OwnedFd>>::into_iter(all).map(move |one| (name, one));
        self.all.iter().flat_map(each).map(|(name, one): (&String, _)| (name.as_str(), one.as_fd()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn names_are_counted_and_closed() {
        let mut held = Held::new(2);
        held.start_closers().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let copy = writer.try_clone().unwrap();
        held.put("session-1".into(), writer.into());
        held.put("device-a".into(), copy.into());
        assert!(!held.has_room());
        let names: Vec<_> = held.all().map(|(name, _)| name.to_owned()).collect();
        assert_eq!(names, ["device-a", "session-1"]);
        held.remove("none");
        assert!(!held.has_room());
        held.remove("device-a");
        held.remove("session-1");
        assert!(held.has_room() && held.count == 0);
        // Waits until the other thread has closed the last copy.
        assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
    }
}
