//! The steps of an upgrade, as a keeper takes them: its server leaves, a server of the installed program
//! starts, and the keeper executes that program, too.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::{Handover, LEAVE, Supervisor};
use crate::keeper::options::UPGRADE_TIMEOUT;
use crate::keeper::server_process::ServerProcess;

/// The longest time that the keeper waits for threads that close descriptors, before it executes
/// another program.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Supervisor<'_> {
    /// Tells the administrator that asked, if one did, why there is no upgrade.
    pub(super) fn refuse_upgrade(&mut self, why: &str) {
        if let Some(asking) = self.keeper.upgrade_request.take() {
            tracing::error!(interface = self.options.interface, "no upgrade: {why}");
            asking.answer(Err(why));
        }
    }

    /// Has the server leave for its successor, if an administrator has asked for an upgrade.
    pub(super) fn begin_upgrade(&mut self, process: &ServerProcess) {
        if self.keeper.upgrade_request.is_none()
            || self.keeper.is_told_to_end
            || !matches!(self.handover, Handover::None)
        {
            return;
        }
        if !self.keeper.is_ready {
            return self.refuse_upgrade("the server does not serve yet; wait until it does");
        }
        self.program = match self.supervised.prepare_upgrade() {
            Ok(program) => program,
            Err(error) => return self.refuse_upgrade(&error.to_string()),
        };
        let program = &self.program;
        tracing::info!(interface = self.options.interface, program, "upgrade: the server leaves");
        process.signal(LEAVE);
        self.handover = Handover::Leaving(Instant::now() + UPGRADE_TIMEOUT);
    }

    /// Takes note that a server has ended. Returns `true` if the next server starts at once, because
    /// of an upgrade.
    pub(super) fn continue_upgrade(&mut self, status: ExitStatus) -> bool {
        match self.handover {
            Handover::None => false,
            // Killed or not, it has ended.
            Handover::Leaving(_) => {
                self.handover = Handover::Starting(Instant::now() + UPGRADE_TIMEOUT);
                true
            }
            Handover::Starting(_) => self.undo_upgrade(&format!(
                "{0} did not serve: {1}; the log may say why; check the program: {0} --version",
                self.program,
                self.describe_end(status)
            )),
        }
    }

    /// Goes back to the previous program, if an upgrade is under way. Returns `true` if one was.
    pub(super) fn undo_upgrade(&mut self, why: &str) -> bool {
        if matches!(self.handover, Handover::None) {
            return false;
        }
        self.handover = Handover::None;
        self.supervised.end_upgrade(false);
        self.refuse_upgrade(&format!("{why}; the keeper starts a server of the previous program"));
        true
    }

    /// Ends an upgrade whose server serves.
    pub(super) fn finish_upgrade(&mut self, process: &ServerProcess) {
        if !matches!(self.handover, Handover::Starting(_)) {
            return;
        }
        self.handover = Handover::None;
        self.supervised.end_upgrade(true);
        let interface = &self.options.interface;
        tracing::info!(interface, "upgrade: the new server serves");
        let why = if self.keeper.is_told_to_end {
            "it is about to end".to_owned()
        } else {
            self.replace_program(process).to_string()
        };
        tracing::warn!(interface, "the keeper goes on with its earlier program: {why}");
        if let Some(asking) = self.keeper.upgrade_request.take() {
            asking.answer(Ok(Some(&why)));
        }
    }

    /// Executes the program of the current server as the keeper. Returns only if that fails, with the
    /// reason.
    fn replace_program(&mut self, process: &ServerProcess) -> io::Error {
        // The kernel ends this process's other threads first, and waits for a thread in a system
        // call that does not return.
        if !self.keeper.held.finish_closing(CLOSE_TIMEOUT) {
            return io::Error::other(
                "it still closes objects of ended sessions; upgrade again later",
            );
        }
        let left = self.keeper.state(&self.listener, process, self.number);
        let replaced = left.write().and_then(|file| {
            left.set_close_on_exec(false)?;
            Ok(self.supervised.replace(file.as_fd()))
        });
        let error = replaced.unwrap_or_else(|error| error);
        if let Err(error) = left.set_close_on_exec(true) {
            tracing::error!(
                interface = self.options.interface,
                "cannot set close-on-exec on the keeper's descriptors: {error}; programs that it \
                 starts inherit them"
            );
        }
        error
    }
}
