//! The keeper of one device: it starts servers, one after the other. It is a state that the keeper's
//! loop drives (`supervise`), and never waits itself.

mod begin;
mod end;
mod report;
mod upgrade;

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;

use super::ends::{ANEW_TIMEOUT, Ends, LONGEST_PAUSE};
use super::hang_watch::HangWatch;
use super::listener::Listener;
use super::options::{KeeperOptions, UPGRADE_TIMEOUT, keeper_connection};
use super::process::Keeper;
use super::server_process::ServerProcess;
use super::status::DeviceState;
use super::supervised::{Start, Supervised, Supervision};
use crate::position::Crash;
use report::Report;

/// Signals within this time are one: `timeout` (coreutils) signals its program and then the program's
/// group.
const TOGETHER: Duration = Duration::from_millis(100);

/// Asks a server to end, and to leave everything to the next one.
const LEAVE: Signal = Signal::USR2;

/// How far the server is with leaving, and the next one with starting.
enum Handover {
    None,
    /// The server leaves, for an upgrade or at the end of the supervision, by this time.
    Leaving(Instant),
    /// The next server, of the installed program, is to serve by this time.
    Starting(Instant),
}

/// What a device's keeper does.
enum Stage {
    /// It starts a server at this time.
    Waits(Instant),
    /// A server runs.
    Runs(Server),
    /// No other server follows.
    Over(Supervision),
}

/// A server, until its process has ended.
struct Server {
    process: ServerProcess,
    watch: HangWatch,
    begun: Instant,
    /// `false` once the server has closed its connection, or is about to be gone.
    is_connected: bool,
    /// `true` once the keeper has taken note that the server serves.
    has_served: bool,
    /// The first signal that asked for the end.
    asked_at: Option<Instant>,
}

/// Which of a device's descriptors are ready. A connection may be readable or have room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readable {
    pub(super) listener: bool,
    pub(super) connection: bool,
    pub(super) process: bool,
    pub(super) interface: bool,
}

/// The keeper of a device, and its servers.
pub(super) struct DeviceKeeper {
    /// The device's number, for the caller.
    number: usize,
    options: KeeperOptions,
    listener: Listener,
    keeper: Keeper,
    stage: Stage,
    /// The first server's end of the keeper's connection.
    first: Option<OwnedFd>,
    ends: Ends,
    /// How the last server crashed or hung, if it did and no server has counted that yet.
    crash: Option<Crash>,
    handover: Handover,
    /// The name of the program of an upgrade.
    program: String,
    /// `true` once an upgrade's server serves, until the administrator has an answer.
    is_upgraded: bool,
    /// The engine of the last server that hung.
    hung: Option<usize>,
    /// `true` if the last server took too long to end or to start, and was killed.
    is_late: bool,
    /// `true` once the last server is to leave everything, because the supervision ends.
    is_leaving: bool,
    /// How many servers were started.
    servers_started: u32,
    /// The time by which a server must serve, if an earlier one has served.
    serve_by: Option<Instant>,
    /// `true` once a server has failed so that the supervision begins anew.
    has_failed: bool,
    /// What every user may know of the device.
    status: Report,
}

impl Server {
    fn new(process: ServerProcess) -> Server {
        Server {
            watch: HangWatch::new(process.pid()),
            process,
            begun: Instant::now(),
            is_connected: true,
            has_served: false,
            asked_at: None,
        }
    }
}

impl DeviceKeeper {
    /// Returns `true` once some server has served.
    pub(super) fn has_served(&self) -> bool {
        self.keeper.was_ready()
    }

    /// Returns `true` if the keeper need not wait any longer for the first server to serve.
    pub(super) fn has_settled(&self) -> bool {
        self.has_served() || self.has_failed || self.is_over()
    }

    /// Returns `true` if no other server follows.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over(_))
    }

    /// Returns how the supervision ended; `None` if it has not.
    pub(super) fn into_end(self) -> Option<Supervision> {
        match self.stage {
            Stage::Over(end) => Some(end),
            Stage::Waits(_) | Stage::Runs(_) => None,
        }
    }

    /// Starts the threads that close objects. Call it once the process has given up its privileges.
    pub(super) fn start_closers(&mut self) -> io::Result<()> {
        self.keeper.held.start_closers()
    }

    /// Returns what the device waits for, in the order of [`Readable`].
    pub(super) fn waits_for(&self) -> [Option<PollFd<'_>>; 4] {
        let server = match &self.stage {
            Stage::Runs(server) => Some(server),
            Stage::Waits(_) => None,
            Stage::Over(_) => return [const { None }; 4],
        };
        let connection = server.filter(|server| server.is_connected);
        let of_connection = if self.keeper.is_giving() { PollFlags::OUT } else { PollFlags::IN };
        [
            Some(self.listener.waits_for()),
            connection.map(|_| PollFd::new(&self.keeper, of_connection)),
            server.map(|server| PollFd::new(&server.process, PollFlags::IN)),
            self.keeper.interface.event_fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        ]
    }

    /// Returns the time at which the device has something to do, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let next = match &self.stage {
            Stage::Waits(until) => Some(*until),
            Stage::Runs(server) => {
                self.server_deadline().into_iter().chain(server.watch.next(&self.keeper)).min()
            }
            Stage::Over(_) => None,
        };
        next.into_iter().chain(self.listener.deadline()).min()
    }

    /// Returns what the device's keeper does, for users.
    fn state_for_users(&self) -> DeviceState {
        let is_ending = |server: &Server| self.is_leaving || server.asked_at.is_some();
        let serves = self.keeper.is_ready && !matches!(self.handover, Handover::Leaving(_));
        match &self.stage {
            Stage::Over(_) => DeviceState::Ending,
            Stage::Runs(server) if is_ending(server) => DeviceState::Ending,
            Stage::Runs(_) if serves => DeviceState::Serving,
            _ if self.ends.has_served() => DeviceState::Restarting,
            _ if self.has_failed => DeviceState::Failed,
            _ => DeviceState::Starting,
        }
    }

    /// Tells users of a change.
    pub(super) fn publish(&mut self) {
        let name = self.keeper.interface.other_name();
        self.status.publish(&self.options.interface, name, self.state_for_users());
    }

    /// Starts a server, if it is time.
    pub(super) fn start_if_due(&mut self, supervised: &mut dyn Supervised) -> io::Result<()> {
        match self.stage {
            Stage::Waits(at) if at <= Instant::now() => {}
            _ => return Ok(()),
        }
        let hold = self.options.hold;
        self.serve_by = self.ends.serve_by(hold);
        if self.options.retries && self.serve_by.is_none() {
            self.serve_by = Some(Instant::now() + ANEW_TIMEOUT);
        }
        (self.hung, self.is_late) = (None, false);
        let begun = Instant::now();
        self.stage = match self.start(supervised) {
            Ok(process) => Stage::Runs(Server { begun, ..Server::new(process) }),
            Err(error)
                if self.options.retries
                    || self.ends.held_until(hold).is_some_and(|last| last > begun) =>
            {
                Stage::Waits(self.after_failed_start(&error, supervised))
            }
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Starts a server over the keeper's first connection, or over a new one, and begins to give it
    /// everything that the keeper holds.
    fn start(&mut self, supervised: &mut dyn Supervised) -> io::Result<ServerProcess> {
        let theirs = match self.first.take() {
            Some(theirs) => theirs,
            None => {
                let (ours, theirs) = keeper_connection()?;
                self.keeper.connect(ours);
                theirs
            }
        };
        self.keeper.find_interface();
        let is_upgrade = matches!(self.handover, Handover::Starting(_));
        let start = Start {
            number: self.servers_started,
            begins_anew: self.keeper.held.has_none_of_servers(),
            crash: self.crash,
            is_upgrade,
        };
        let process = ServerProcess::new(supervised.launch(self.number, theirs, start)?)?;
        self.servers_started += 1;
        if let Err(error) = self.keeper.begin_giving() {
            process.signal(Signal::KILL);
            process.wait()?;
            return Err(error);
        }
        Ok(process)
    }

    /// Logs that a server's process did not start, and undoes an upgrade. Returns the time of the next
    /// start.
    fn after_failed_start(
        &mut self,
        error: &io::Error,
        supervised: &mut dyn Supervised,
    ) -> Instant {
        let why =
            format!("{0} does not start: {error}; check the program: {0} --version", self.program);
        if self.undo_upgrade(&why, supervised) {
            return Instant::now();
        }
        tracing::error!(
            device = self.options.interface,
            "a server does not start: {error}; another attempt follows"
        );
        self.status.add_end(&format!("a server does not start: {error}"));
        // No other device waits for this one any longer.
        self.has_failed |= self.options.retries;
        Instant::now() + LONGEST_PAUSE
    }

    /// Handles what is readable, and what it is time for.
    pub(super) fn advance(
        &mut self,
        readable: Readable,
        supervised: &mut dyn Supervised,
    ) -> io::Result<()> {
        if let Some(request) = self.listener.advance(readable.listener) {
            self.keeper.admit(request);
        }
        if readable.interface {
            self.keeper.hear_of_interface();
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Waits(Instant::now()));
        self.stage = match stage {
            Stage::Runs(server) => self.advance_server(server, readable, supervised)?,
            Stage::Waits(until) => {
                self.refuse_upgrade("no server serves now; wait until one does");
                Stage::Waits(until)
            }
            Stage::Over(end) => Stage::Over(end),
        };
        Ok(())
    }

    /// Serves a server.
    fn advance_server(
        &mut self,
        mut server: Server,
        readable: Readable,
        supervised: &mut dyn Supervised,
    ) -> io::Result<Stage> {
        if readable.connection {
            server.is_connected = self.hear(&server.process)?;
        }
        if self.keeper.is_ready && !self.is_late && !std::mem::replace(&mut server.has_served, true)
        {
            self.finish_upgrade(supervised);
        }
        if readable.process {
            // The server may have sent more before it ended.
            self.keeper.finish()?;
            let status = server.process.wait()?;
            return Ok(self.after_end(&server, status, supervised));
        }
        if self.hung.is_none()
            && let Some(engine) = server.watch.find(&self.keeper)
        {
            self.hung = Some(engine);
            server.process.signal(Signal::KILL);
        }
        if self.server_deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            tracing::error!(
                device = self.options.interface,
                "the server takes too long to end or to start, and is killed"
            );
            self.is_late = true;
            server.process.signal(Signal::KILL);
        } else {
            self.begin_upgrade(&server.process, supervised);
        }
        Ok(Stage::Runs(server))
    }

    /// Handles a message of the server, or gives it more of what the keeper holds. Returns `false` at the
    /// end of its connection.
    fn hear(&mut self, process: &ServerProcess) -> io::Result<bool> {
        if !self.keeper.is_giving() {
            return self.keeper.hear();
        }
        if let Err(error) = self.keeper.give() {
            tracing::error!(
                device = self.options.interface,
                "the server does not get the keeper's objects, and is killed: {error}"
            );
            process.signal(Signal::KILL);
            return Ok(false);
        }
        Ok(true)
    }

    /// Passes a signal on to the server, or ends the supervision if none runs.
    pub(super) fn signal(&mut self, signal: i32) {
        if signal == libc::SIGHUP && !self.options.passes_hangup {
            return;
        }
        let leaves = self.options.leaves_at_sigterm && signal == libc::SIGTERM;
        match &mut self.stage {
            Stage::Over(_) => {}
            Stage::Waits(_) if signal == libc::SIGHUP => {}
            Stage::Waits(_) => {
                self.is_leaving = leaves;
                let end = if leaves { self.left() } else { Supervision::Stopped };
                self.stage = Stage::Over(end);
            }
            Stage::Runs(server) => {
                let mut sent = Signal::from_named_raw(signal);
                if signal != libc::SIGHUP {
                    self.keeper.is_told_to_end = true;
                    if leaves {
                        self.is_leaving = true;
                        // A server that leaves already needs no second request.
                        sent = match self.handover {
                            Handover::Leaving(_) => None,
                            _ => Some(LEAVE),
                        };
                        self.handover = Handover::Leaving(Instant::now() + UPGRADE_TIMEOUT);
                    }
                    if server.asked_at.is_some_and(|first| first.elapsed() > TOGETHER) {
                        // The server takes too long.
                        sent = Some(Signal::KILL);
                    }
                    server.asked_at.get_or_insert_with(Instant::now);
                }
                if let Some(signal) = sent {
                    server.process.signal(signal);
                }
            }
        }
    }

    /// Returns the time by which the server must have ended, or must serve; `None` once it is killed for
    /// that.
    fn server_deadline(&self) -> Option<Instant> {
        match self.handover {
            _ if self.is_late => None,
            Handover::Leaving(deadline) => Some(deadline),
            Handover::Starting(deadline) if !self.keeper.is_ready => Some(deadline),
            _ if !self.keeper.is_ready => self.serve_by,
            _ => None,
        }
    }
}
