//! What the keeper of a device does when it is time, when a descriptor is ready, and at a signal.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use rustix::process::Signal;

use super::{CLOSE_PATIENCE, DeviceKeeper, Handover, LEAVE, Readable, Server, Stage, TOGETHER};
use crate::ends::{ANEW_TIMEOUT, LONGEST_PAUSE, is_defect};
use crate::options::{UPGRADE_TIMEOUT, keeper_connection};
use crate::server_process::{ServerProcess, try_reap};
use crate::supervised::{Start, Supervised, Supervision};

impl DeviceKeeper {
    /// Starts a server, if it is time.
    pub(crate) fn start_if_due(&mut self, supervised: &mut dyn Supervised) -> io::Result<()> {
        match self.stage {
            Stage::Waits(at) if at <= Instant::now() => {}
            _ => return Ok(()),
        }
        let hold = self.options.hold;
        self.serve_by = self.ends.serve_by(hold);
        if self.options.retries && self.serve_by.is_none() {
            self.serve_by = Some(Instant::now() + ANEW_TIMEOUT);
        }
        (self.hung, self.is_late, self.is_closing) = (None, false, false);
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

    /// Handles the descriptors that are readable, and the deadlines that have passed.
    pub(crate) fn advance(
        &mut self,
        readable: Readable,
        supervised: &mut dyn Supervised,
    ) -> io::Result<()> {
        if let Some(request) = self.listener.advance(readable.listener) {
            self.keeper.admit(request);
        }
        if readable.interface {
            self.keeper.follow_interface();
        }
        self.reap_ended();
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

    /// Reaps the servers whose descriptors the kernel has closed.
    fn reap_ended(&mut self) {
        self.unreaped.retain(|process| {
            let Some(status) = try_reap(*process) else { return true };
            self.crash_reaped = is_defect(status).then(Instant::now);
            false
        });
    }

    /// Serves a server.
    fn advance_server(
        &mut self,
        mut server: Server,
        readable: Readable,
        supervised: &mut dyn Supervised,
    ) -> io::Result<Stage> {
        if readable.connection {
            server.is_connected = self.handle_connection(&server.process)?;
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
        if readable.end_pipe {
            // A server that closed the pipe itself must not run beside the next one.
            server.process.signal(Signal::KILL);
            server.pipe_ended = Some(Instant::now());
        }
        if server.pipe_ended.is_some_and(|at| at.elapsed() >= CLOSE_PATIENCE) && self.is_followed()
        {
            self.keeper.finish()?;
            self.is_closing = true;
            let stage = self.after_end(&server, ExitStatus::from_raw(libc::SIGKILL), supervised);
            self.unreaped.push(server.process.pid());
            return Ok(stage);
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

    /// Handles a message of the server, or gives the server more of the objects that the keeper holds. Returns `false`
    /// at the end of the connection.
    fn handle_connection(&mut self, process: &ServerProcess) -> io::Result<bool> {
        if !self.keeper.is_giving() {
            return self.keeper.handle_message();
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
    pub(crate) fn signal(&mut self, signal: i32) {
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
}
