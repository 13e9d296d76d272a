//! The connections and doorbells that a worker holds. All their memory exists before the worker's
//! process is made, which then allocates nothing.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::FallocateFlags;
use towpath_protocol::doorbell;
use towpath_queue::PeerWords;

use super::wire::Descriptors;

/// A control connection.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The connection's token.
    pub(crate) token: u64,
    /// The control socket.
    pub(crate) socket: OwnedFd,
    /// The peer's process.
    pub(crate) process: Option<OwnedFd>,
    /// The end of the permitted silence, on the monotonic clock in nanoseconds.
    pub(crate) deadline: Option<u64>,
    /// `true` if the peer was sent descriptors.
    pub(crate) has_descriptors: bool,
    /// The descriptors of an ended session, which the worker closes when the connection ends.
    pub(crate) disposed: Option<Descriptors>,
}

impl Entry {
    /// Returns `true` if the peer has yet to read something.
    pub(super) fn has_unread_data(&self) -> bool {
        towpath_protocol::peer::unread_bytes(&self.socket).is_ok_and(|bytes| bytes > 0)
    }
}

/// The connections of a user.
#[derive(Debug)]
pub(crate) struct Entries {
    all: Vec<Option<Entry>>,
    timed: usize,
}

impl Entries {
    /// Creates room for `count` connections.
    pub(crate) fn with_room(count: usize) -> Entries {
        Entries { all: std::iter::repeat_with(|| None).take(count).collect(), timed: 0 }
    }

    /// Enters a connection, and returns its index; `Err` if there is no room.
    pub(crate) fn insert(&mut self, entry: Entry) -> Result<usize, Entry> {
        let Some(index) = self.all.iter().position(Option::is_none) else { return Err(entry) };
        self.timed += usize::from(entry.deadline.is_some());
        self.all[index] = Some(entry);
        Ok(index)
    }

    /// Removes a connection.
    pub(crate) fn remove(&mut self, index: usize) -> Option<Entry> {
        let entry = self.all.get_mut(index)?.take()?;
        self.timed -= usize::from(entry.deadline.is_some());
        Some(entry)
    }

    /// Returns a connection by its index.
    pub(crate) fn at(&mut self, index: usize) -> Option<&mut Entry> {
        self.all.get_mut(index)?.as_mut()
    }

    /// Returns the index of a connection.
    pub(crate) fn index_of(&self, token: u64) -> Option<usize> {
        self.all.iter().position(|one| one.as_ref().is_some_and(|one| one.token == token))
    }

    /// Sets the end of a connection's permitted silence.
    pub(crate) fn set_deadline(&mut self, index: usize, deadline: Option<u64>) {
        let Some(Some(entry)) = self.all.get_mut(index) else { return };
        self.timed -= usize::from(entry.deadline.is_some());
        self.timed += usize::from(deadline.is_some());
        entry.deadline = deadline;
    }

    /// Returns the first deadline and the index of its connection.
    pub(crate) fn first_deadline(&self) -> Option<(u64, usize)> {
        if self.timed == 0 {
            return None;
        }
        let all = self.all.iter().enumerate();
        all.filter_map(|(index, one)| Some((one.as_ref()?.deadline?, index))).min()
    }
}

/// The doorbells that the engines do not use themselves, and their counters for them.
#[derive(Debug)]
pub(crate) struct Doorbells {
    /// For each engine, one counter per session of the server; only that engine writes them.
    counters: Vec<PeerWords>,
    /// The sum of each session's counters when the worker last notified its application.
    seen: Vec<u64>,
    sockets: Vec<Option<OwnedFd>>,
    /// The numbers of the existing doorbells.
    numbers: Vec<u32>,
}

impl Doorbells {
    /// Creates room for the doorbells of all counters.
    pub(crate) fn new(counters: Vec<PeerWords>) -> Doorbells {
        let count = counters.first().map_or(0, PeerWords::len);
        Doorbells {
            counters,
            seen: vec![0; count],
            sockets: std::iter::repeat_with(|| None).take(count).collect(),
            numbers: Vec::with_capacity(count),
        }
    }

    /// Takes over a doorbell. A number out of range drops it.
    pub(crate) fn insert(&mut self, number: u64, socket: Option<OwnedFd>) {
        let (Ok(index), Some(socket)) = (usize::try_from(number), socket) else { return };
        if index >= self.sockets.len() {
            return;
        }
        // With zero, a notification that the engine has counted before this command is visible as a change. A
        // superfluous notification is harmless.
        self.seen[index] = 0;
        if self.sockets[index].replace(socket).is_none() {
            self.numbers.push(index as u32);
        }
    }

    /// Closes a doorbell.
    pub(crate) fn remove(&mut self, number: u64) {
        self.numbers.retain(|one| u64::from(*one) != number);
        if let Some(index) = usize::try_from(number).ok().and_then(|at| self.sockets.get_mut(at)) {
            *index = None;
        }
    }

    /// Notifies through each doorbell whose counter has changed.
    pub(crate) fn notify(&mut self) {
        for number in &self.numbers {
            let index = *number as usize;
            let counts = self.counters.iter().map(|engine| engine.observe(index));
            let count = counts.fold(0, u64::wrapping_add);
            if count != self.seen[index]
                && let Some(socket) = &self.sockets[index]
            {
                self.seen[index] = count;
                doorbell::notify(socket);
            }
        }
    }
}

/// Frees the memory of these files where their seals allow it, although an application may keep
/// them open: the server allocated it.
pub(crate) fn wipe(files: &Descriptors) {
    for file in files.iter().flatten() {
        let Ok(size) = rustix::fs::fstat(file).map(|stat| stat.st_size) else { continue };
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(file.as_fd(), hole, 0, size as u64);
    }
}
