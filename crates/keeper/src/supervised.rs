//! What a supervision asks of its caller, how it begins, and how it ends.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::{Child, ExitStatus};

use super::keeper_state::KeeperState;
use towpath_protocol::position::Crash;

/// The caller's part of [`supervise`](super::supervise): starts server processes, and gives up
/// privileges. `device` is the number of a device, in the order in which the caller named them.
pub trait Supervised {
    /// Starts a server of a device, to which the keeper is at the other end of `connection`
    /// ([`KeeperAccess::new`](super::KeeperAccess::new)).
    ///
    /// # Errors
    /// If the process does not start.
    fn launch(&mut self, device: usize, connection: OwnedFd, start: Start) -> io::Result<Child>;

    /// Finds the program that is installed now, for a device's next server. Returns its name for
    /// messages.
    ///
    /// # Errors
    /// If there is none, with the reason and the remedy.
    fn prepare_upgrade(&mut self, device: usize) -> io::Result<String>;

    /// Ends an upgrade. If a server of the program of [`Supervised::prepare_upgrade`] serves, all
    /// further servers of the device start from that program, and else from the previous one.
    fn end_upgrade(&mut self, device: usize, serves: bool);

    /// Has this process execute the program with which the device's last upgrade ended, after that
    /// program has checked by [`Continued::read`] that it can go on with the contents of `file`. Returns
    /// only if the check or the execution fails, with the reason. Until then, all descriptors of the
    /// keeper are open for programs that this process starts.
    fn replace(&mut self, device: usize, file: BorrowedFd<'_>) -> io::Error;

    /// Gives up all privileges but a keeper's. `has_served`: which devices have served.
    /// [`supervise`](super::supervise) calls it once, when each device has served, or has failed
    /// with [`KeeperOptions::retries`](super::KeeperOptions::retries).
    ///
    /// # Errors
    /// If the process cannot give up its privileges. This ends the keeper.
    fn ready(&mut self, has_served: &[bool]) -> io::Result<()>;

    /// Takes the number of a signal for the servers that has arrived; `None` if there is none.
    fn take_signal(&mut self) -> Option<i32>;
}

/// The start of a server.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// How many servers were started before.
    pub number: u32,
    /// `true` if the server gets no object of an earlier one.
    pub begins_anew: bool,
    /// How the server before crashed or hung, if it did and no server has counted that yet.
    pub crash: Option<Crash>,
    /// `true` if the server is of the program of [`Supervised::prepare_upgrade`]. It ends before it
    /// changes anything if it cannot resume everything.
    pub is_upgrade: bool,
}

/// The end of the supervision of a device.
#[derive(Debug)]
pub enum Supervision {
    /// The server ended in order, or before it served for the first time.
    Ended(ExitStatus),
    /// A signal ended the supervision while no server ran.
    Stopped,
    /// SIGTERM ended the supervision, and the server has left, with
    /// [`KeeperOptions::leaves_at_sigterm`](super::options::KeeperOptions::leaves_at_sigterm).
    Left(LeftObjects),
    /// No server could serve for the time that the keeper holds objects.
    GaveUp(ExitStatus),
}

/// What the servers of a supervision leave.
#[derive(Debug, Default)]
pub struct LeftObjects {
    /// The objects, by name.
    pub objects: Vec<(String, OwnedFd)>,
    /// How the last server crashed or hung, if it did and no server has counted that yet.
    pub crash: Option<Crash>,
}

/// How the supervision of a device begins.
#[derive(Debug)]
pub enum Begin {
    /// It starts the first server.
    First {
        /// The keeper's own objects, by name.
        own: Vec<(String, OwnedFd)>,
        /// What an earlier supervision left.
        left: LeftObjects,
    },
    /// It continues with a server that serves an earlier program of this process.
    Continued(Continued),
}

/// The state of a device that an earlier program of this process has left ([`Supervised::replace`]).
#[derive(Debug)]
pub struct Continued(pub(super) KeeperState);

impl Continued {
    /// Reads the file of [`Supervised::replace`], and checks that every descriptor in it is open. Returns
    /// the state of each device.
    ///
    /// # Errors
    /// If the file is of an unknown format, or a descriptor is not open.
    pub fn read(file: BorrowedFd<'_>) -> io::Result<Vec<Continued>> {
        Ok(KeeperState::read(file)?.into_iter().map(Continued).collect())
    }

    /// Returns a copy of an object that the keeper holds.
    ///
    /// # Errors
    /// If it holds none under this name.
    pub fn object(&self, name: &str) -> io::Result<OwnedFd> {
        self.0.object(name)
    }
}
