//! The keeper of one device: it starts servers, one after the other. It is a state that the keeper's
//! loop drives (`supervise`), and never waits itself.

mod advance;
mod begin;
mod end;
mod report;
mod upgrade;

use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal};

use super::ends::{Ends, describe};
use super::hang_watch::HangWatch;
use super::listener::Listener;
use super::options::KeeperOptions;
use super::process::Keeper;
use super::server_process::ServerProcess;
use super::status::DeviceState;
use super::supervised::{LeftObjects, Supervision};
use report::Report;
use towpath_protocol::position::Crash;

/// Signals within this time are one: `timeout` (coreutils) signals its program and then the program's
/// group.
const TOGETHER: Duration = Duration::from_millis(100);

/// The time that the keeper waits for the kernel to close the descriptors of a server of which no thread runs any more.
/// A usual end takes less, and tells how the server ended.
const CLOSE_PATIENCE: Duration = Duration::from_millis(100);

/// The time after a crash of which the keeper learned late, for which ends that are not known count as crashes.
const CRASH_MEMORY: Duration = Duration::from_secs(60);

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
    /// The time at which its pipe told of the end ([`END_OF_SERVER`](crate::END_OF_SERVER)).
    pipe_ended: Option<Instant>,
}

/// Which of a device's descriptors are ready. A connection may be readable or have room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readable {
    pub(super) listener: bool,
    pub(super) connection: bool,
    pub(super) process: bool,
    pub(super) end_pipe: bool,
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
    /// `true` if the kernel still closes descriptors of the last server, so that it is not known how that ended.
    is_closing: bool,
    /// The processes of such servers, which the keeper has not reaped yet.
    unreaped: Vec<Pid>,
    /// The time at which the keeper reaped the last of these, if that had crashed.
    crash_reaped: Option<Instant>,
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
            pipe_ended: None,
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

    /// Returns the descriptors that the device waits for, in the order of [`Readable`].
    pub(super) fn waits_for(&self) -> [Option<PollFd<'_>>; 5] {
        let server = match &self.stage {
            Stage::Runs(server) => Some(server),
            Stage::Waits(_) => None,
            Stage::Over(_) => return [const { None }; 5],
        };
        let end_pipe = match server {
            Some(server) if server.pipe_ended.is_none() => self.keeper.end_pipe.as_ref(),
            _ => None,
        };
        let connection = server.filter(|server| server.is_connected);
        let of_connection = if self.keeper.is_giving() { PollFlags::OUT } else { PollFlags::IN };
        [
            Some(self.listener.waits_for()),
            connection.map(|_| PollFd::new(&self.keeper, of_connection)),
            server.map(|server| PollFd::new(&server.process, PollFlags::IN)),
            // The kernel always reports the end of a pipe.
            end_pipe.map(|pipe| PollFd::new(pipe, PollFlags::empty())),
            self.keeper.interface.event_fd().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)),
        ]
    }

    /// Returns the time at which the device has something to do, if nothing happens before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let next = match &self.stage {
            Stage::Waits(until) => Some(*until),
            Stage::Runs(server) => {
                let ended = server.pipe_ended.filter(|_| self.is_followed());
                let closing = ended.map(|at| at + CLOSE_PATIENCE);
                let watch = server.watch.next(&self.keeper);
                [self.server_deadline(), watch, closing].into_iter().flatten().min()
            }
            Stage::Over(_) => None,
        };
        next.into_iter().chain(self.listener.deadline()).min()
    }

    /// Returns `true` if another server follows the one that has ended.
    fn is_followed(&self) -> bool {
        let has_served = self.keeper.is_ready || self.ends.has_served();
        let is_asked = self.is_leaving || self.keeper.is_told_to_end;
        has_served && !is_asked && !self.options.hold.is_zero()
    }

    /// Returns the state of the device, for users.
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

    /// Returns the end of the supervision with what the servers left.
    fn left(&mut self) -> Supervision {
        Supervision::Left(LeftObjects { objects: self.keeper.held.drain(), crash: self.crash })
    }

    /// Returns how a server ended, in words.
    fn describe_end(&self, status: ExitStatus) -> String {
        match self.hung {
            Some(engine) => format!("engine {engine} hung, and the server was killed"),
            None if self.is_late => "the server took too long, and was killed".to_owned(),
            None if self.is_closing => {
                "the server has ended, and the kernel still closes its descriptors".to_owned()
            }
            None => describe(status),
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
