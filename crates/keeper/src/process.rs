//! The keeper's side.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::Timespec;
use rustix::fs::FileType;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use zerocopy::{FromBytes, IntoBytes};

use super::device_objects;
use super::held::{self, Held};
use super::interface::{INTERFACE, Interface, TAP};
use super::keeper_state::{FORMAT, KeeperState};
use super::listener::{Listener, UpgradeRequest};
use super::notify::{self, MESSAGE_BYTES, Notification, store};
use super::options::{KeeperOptions, OWN, PAUSE};
use super::port_holder::PORT;
use super::privileged_acts::{Done, PrivilegedActs};
use super::server_process::ServerProcess;
use super::wire::{
    ALL_GIVEN, Answer, END, LIMIT, RELEASE_TCP, RELEASE_UDP, Received, Request, is_gone,
    receive_with, send,
};
use crate::log_limit::LogLimit;
use towpath_protocol::position::{POSITIONS, Positions};

/// The keeper's state.
pub(super) struct Keeper {
    socket: OwnedFd,
    acts: PrivilegedActs,
    pub(super) interface: Interface,
    pub(super) held: Held,
    /// How many of the held objects the server has, while the keeper gives them.
    given: Option<usize>,
    limit: usize,
    /// The keeper logs because of the server only, as user 0.
    log: LogLimit<u32>,
    /// `true` once the server has said that it is about to end.
    pub(super) is_told_to_end: bool,
    /// `true` once the server has said that it serves.
    pub(super) is_ready: bool,
    /// `true` once some server has said that it serves.
    was_ready: bool,
    /// Why the server fails, in its own words.
    pub(super) failure: Option<String>,
    /// The administrator that has asked for an upgrade.
    pub(super) upgrade_request: Option<UpgradeRequest>,
    /// Where the server's threads stand.
    pub(super) positions: Option<Positions>,
    /// A pipe that the server has open until it ends.
    pub(super) end_pipe: Option<OwnedFd>,
}

/// The name of a pipe's reading end. The writing end is closed when no thread of the server runs any more, although the
/// kernel may still close other descriptors of the process.
pub const END_OF_SERVER: &str = "end-of-server";

/// Returns a copy of a pipe; `None` for another file. A server that was taken over may store any file: the keeper's loop neither
/// polls nor closes one whose calls may wait.
fn copy_of_pipe(object: &OwnedFd) -> Option<OwnedFd> {
    let stat = rustix::fs::fstat(object).ok()?;
    let is_pipe = FileType::from_raw_mode(stat.st_mode).is_fifo();
    is_pipe.then(|| object.try_clone().ok()).flatten()
}

/// Returns the time left, for `poll`.
pub(super) fn timeout(until: Option<Instant>) -> Option<Timespec> {
    let left = until?.saturating_duration_since(Instant::now());
    Timespec::try_from(left).ok()
}

impl Keeper {
    /// Serves a server over `socket`.
    pub(super) fn new(socket: OwnedFd, options: &KeeperOptions) -> io::Result<Keeper> {
        let limit = held::limit() / options.devices.max(1);
        Ok(Keeper {
            socket,
            acts: PrivilegedActs::new(options.shares_host, None),
            interface: Interface::new(&options.interface, options.follows),
            held: Held::new(limit),
            given: None,
            limit,
            log: LogLimit::default(),
            is_told_to_end: false,
            is_ready: false,
            was_ready: false,
            failure: None,
            upgrade_request: None,
            positions: None,
            end_pipe: None,
        })
    }

    /// Goes on with the state of an earlier program of this process, whose server serves.
    pub(super) fn from_state(left: &KeeperState, options: &KeeperOptions) -> io::Result<Keeper> {
        let mut keeper = Keeper::new(KeeperState::take(left.connection)?, options)?;
        (keeper.is_ready, keeper.was_ready) = (true, true);
        keeper.acts = PrivilegedActs::new(options.shares_host, left.xdp_sockets);
        let request = left.upgrade_request.map(KeeperState::take).transpose()?;
        keeper.upgrade_request = request.map(UpgradeRequest::from_state);
        for (name, number) in &left.held {
            let object = KeeperState::take(*number)?;
            if name == POSITIONS {
                keeper.positions = Positions::open(object.as_fd()).ok();
            }
            if name == END_OF_SERVER {
                keeper.end_pipe = copy_of_pipe(&object);
            }
            if name == INTERFACE {
                keeper.interface.adopt(object.as_fd());
            }
            keeper.held.put(name.clone(), object);
        }
        if let Some(tap) = keeper.held.last_of_device(TAP) {
            // An earlier version followed no TAP.
            let found = keeper.interface.find_tap(tap);
            keeper.keep_interface(found);
        }
        Ok(keeper)
    }

    /// Returns the state of this keeper, whose server serves, for the next program of this process.
    pub(super) fn state(
        &self,
        listener: &Listener,
        server: &ServerProcess,
        servers_started: u32,
    ) -> KeeperState {
        let held = self.held.all();
        KeeperState {
            format: FORMAT,
            connection: self.socket.as_raw_fd(),
            listener: listener.socket.as_raw_fd(),
            server: server.as_fd().as_raw_fd(),
            server_pid: server.pid().as_raw_nonzero().get(),
            unreaped: Vec::new(),
            upgrade_request: self.upgrade_request.as_ref().map(|one| one.as_fd().as_raw_fd()),
            servers_started,
            xdp_sockets: self.acts.xdp_sockets(),
            restarts: 0,
            last_end: None,
            held: held.map(|(name, one)| (name.to_owned(), one.as_raw_fd())).collect(),
        }
    }

    /// Serves another server from now on, over `socket`.
    pub(super) fn connect(&mut self, socket: OwnedFd) {
        self.socket = socket;
        (self.is_told_to_end, self.is_ready, self.positions) = (false, false, None);
        self.end_pipe = None;
        self.failure = None;
    }

    /// Looks for the interface, whose name may have changed, for a server that is to start.
    pub(super) fn find_interface(&mut self) {
        let found = self.interface.find(self.held.last_of_device(TAP));
        self.keep_interface(found);
        if !self.interface.is_known() {
            self.held.remove(INTERFACE);
        }
    }

    /// Takes a change of the interface, if there is one.
    pub(super) fn follow_interface(&mut self) {
        let changed = self.interface.take_change();
        self.keep_interface(changed);
    }

    /// Holds the file of the interface, if it has changed. After an error, the next server looks for the
    /// interface itself.
    fn keep_interface(&mut self, changed: io::Result<Option<OwnedFd>>) {
        match changed {
            Ok(Some(file)) => {
                self.held.remove(INTERFACE);
                self.held.put(INTERFACE.to_owned(), file);
            }
            Ok(None) => {}
            Err(error) => tracing::error!(
                "the keeper cannot look for the interface: {error}; the next server looks for it by its last name"
            ),
        }
    }

    /// Begins to give the server copies of everything that the keeper holds.
    pub(super) fn begin_giving(&mut self) -> io::Result<()> {
        self.given = Some(0);
        self.give()
    }

    /// Returns `true` while the connection has no room for the remaining objects.
    pub(super) fn is_giving(&self) -> bool {
        self.given.is_some()
    }

    /// Gives the server as much as the connection has room for. A server that has ended is no error.
    pub(super) fn give(&mut self) -> io::Result<()> {
        let Some(mut given) = self.given.take() else { return Ok(()) };
        let flags = SendFlags::DONTWAIT;
        let left = self.held.all().skip(given);
        let sent = left.map(|(name, one)| {
            send(&self.socket, store(name).as_bytes(), &[one], flags)?;
            given += 1;
            Ok(())
        });
        let sent = sent.collect::<Result<(), Errno>>();
        match sent.and_then(|()| send(&self.socket, ALL_GIVEN, &[], flags)) {
            Err(Errno::AGAIN) => self.given = Some(given),
            Err(errno) if !is_gone(errno) => return Err(errno.into()),
            _ => {}
        }
        Ok(())
    }

    /// Handles a message, once there is one. Returns `false` at the end of the server's connection. Call
    /// it when the keeper has given everything: an honest server sends nothing before.
    pub(super) fn handle_message(&mut self) -> io::Result<bool> {
        self.receive(RecvFlags::empty())
    }

    /// Remembers an administrator as the one that asks for an upgrade, if no other one does.
    pub(super) fn admit(&mut self, request: UpgradeRequest) {
        if self.upgrade_request.is_some() {
            return request.answer(Err("another upgrade is under way; wait for its end"));
        }
        self.upgrade_request = Some(request);
    }

    /// Returns `true` once some server has said that it serves.
    pub(super) fn was_ready(&self) -> bool {
        self.was_ready
    }

    /// Handles the messages that a server left which has ended.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        while self.receive(RecvFlags::DONTWAIT)? {}
        Ok(())
    }

    /// Handles a message. Returns `false` at the end of the server, and with `DONTWAIT` if there is
    /// no message.
    fn receive(&mut self, flags: RecvFlags) -> io::Result<bool> {
        let mut buffer = [0; MESSAGE_BYTES];
        let received = match receive_with(&self.socket, &mut buffer, flags) {
            Err(Errno::INTR) => return Ok(true),
            Err(Errno::CONNRESET | Errno::AGAIN) => return Ok(false),
            Err(Errno::NOMEM | Errno::NOBUFS) => {
                std::thread::sleep(PAUSE);
                return Ok(true);
            }
            other => other?,
        };
        let bytes = &buffer[..received.bytes];
        match bytes.first() {
            None => return Ok(false),
            Some(0) => {
                self.held.close(received.descriptors);
                return Ok(self.answer(bytes));
            }
            Some(_) => self.notified(bytes, received),
        }
        Ok(true)
    }

    /// Handles a message to the store. As with systemd's store, nothing answers it.
    fn notified(&mut self, bytes: &[u8], received: Received) {
        let Received { descriptors, is_cut, .. } = received;
        let notification = notify::parse(bytes).filter(|_| !is_cut);
        match (notification, descriptors.len()) {
            // The keeper and later servers trust its own objects, such as the settings.
            (Some(Notification::Store(name) | Notification::Remove(name)), _)
                if name.starts_with(OWN) =>
            {
                self.refuse(descriptors, "an object of the keeper's own");
            }
            // The keeper makes these sockets itself, and closes them at once.
            (Some(Notification::Store(name)), _) if name.starts_with(PORT) => {
                self.refuse(descriptors, "a port, which only the keeper holds");
            }
            (Some(Notification::Store(name)), 1..) => {
                for descriptor in descriptors {
                    if name == POSITIONS {
                        // Without, the keeper finds no server that hangs.
                        self.positions = Positions::open(descriptor.as_fd()).ok();
                    }
                    if name == END_OF_SERVER {
                        // Without, the keeper waits for the whole end of the process.
                        self.end_pipe = copy_of_pipe(&descriptor);
                    }
                    // A server stores its TAP before it serves. Later it may be subverted, and name another interface.
                    let is_tap = device_objects::parse(name).is_some_and(|(name, _)| name == TAP);
                    if is_tap && !self.is_ready {
                        let found = self.interface.find_tap(descriptor.as_fd());
                        self.keep_interface(found);
                    }
                    if self.held.has_room() {
                        self.held.put(name.to_owned(), descriptor);
                    } else {
                        self.refuse(vec![descriptor], "no room for another descriptor");
                    }
                }
            }
            (Some(Notification::Remove(name)), 0) => {
                match name {
                    POSITIONS => self.positions = None,
                    END_OF_SERVER => self.end_pipe = None,
                    _ => {}
                }
                self.held.remove(name);
            }
            // The server waits for the close.
            (Some(Notification::Barrier), 1) => self.held.end_barrier(descriptors),
            (Some(Notification::Ready), 0) => (self.is_ready, self.was_ready) = (true, true),
            (Some(Notification::Failure(reason)), 0) => self.failure = Some(reason.to_owned()),
            _ => self.refuse(descriptors, "the descriptor store has no such message"),
        }
    }

    fn refuse(&mut self, descriptors: Vec<OwnedFd>, what: &str) {
        self.held.close(descriptors);
        if self.log.allows(0) {
            tracing::error!(
                "the keeper refused a message of the server: {what}; it closed the descriptors of the \
                 message"
            );
        }
    }

    /// Carries a request out, and answers all but the release of a port. Returns `false` at the end
    /// of the server.
    fn answer(&mut self, bytes: &[u8]) -> bool {
        let request = Request::read_from_bytes(bytes).ok();
        if let Some(request) = &request
            && matches!(request.kind, RELEASE_TCP | RELEASE_UDP)
        {
            // No answer: a session may end with thousands of ports.
            let _ = self.carry_out(request);
            return true;
        }
        let number = request.map_or(0, |request| request.number);
        let outcome = request.ok_or(Errno::BADMSG).and_then(|request| self.carry_out(&request));
        let (errno, done) = match outcome {
            Ok(done) => (0, done),
            Err(errno) => (errno.raw_os_error(), Done::default()),
        };
        let Done { value, port, socket } = done;
        // A server that does not read its answers gets none, and makes no other server wait.
        let flags = SendFlags::DONTWAIT;
        let mut sent = {
            let held =
                port.and_then(|(name, socket)| Some((name.clone(), self.held.put(name, socket)?)));
            let held_one = held.iter().map(|(_, socket)| *socket);
            let descriptors: Vec<_> = held_one.chain(socket.iter().map(AsFd::as_fd)).collect();
            let answer = Answer { number, errno, value };
            let sent = send(&self.socket, answer.as_bytes(), &descriptors, flags);
            (sent, held.map(|(name, _)| name))
        };
        // Without memory for the answer, or with too many descriptors on their way: without one.
        if let Err(errno) = sent.0
            && !is_gone(errno)
        {
            if let Some(name) = sent.1.take() {
                self.held.remove(&name);
            }
            let answer = Answer { number, errno: errno.raw_os_error(), value: 0 };
            sent.0 = send(&self.socket, answer.as_bytes(), &[], flags);
        }
        !sent.0.is_err_and(is_gone)
    }

    /// Carries a request out, if it is one that the server may make.
    fn carry_out(&mut self, request: &Request) -> Result<Done, Errno> {
        match request.kind {
            LIMIT => {
                let value = u32::try_from(self.limit).unwrap_or(u32::MAX);
                Ok(Done { value, ..Done::default() })
            }
            END => {
                self.is_told_to_end = true;
                Ok(Done::default())
            }
            _ => self.acts.carry_out(request, &mut self.interface, &mut self.held, self.was_ready),
        }
    }
}

impl AsFd for Keeper {
    /// Returns the connection to the server.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
