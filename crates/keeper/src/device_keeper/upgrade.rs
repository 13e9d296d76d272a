//! The steps of an upgrade, as a keeper takes them: its server leaves, a server of the installed program
//! starts, and the keeper executes that program, too.

use std::io;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use super::{DeviceKeeper, Handover, LEAVE, Stage};
use crate::keeper_state::KeeperState;
use crate::options::UPGRADE_TIMEOUT;
use crate::server_process::ServerProcess;
use crate::supervised::Supervised;

/// The longest time that the keeper waits for threads that close descriptors, before it executes
/// another program.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl DeviceKeeper {
    /// Tells the administrator that asked, if one did, why there is no upgrade.
    pub(super) fn refuse_upgrade(&mut self, why: &str) {
        if let Some(asking) = self.keeper.upgrade_request.take() {
            tracing::error!(device = self.options.interface, "no upgrade: {why}");
            asking.answer(Err(why));
        }
    }

    /// Has the server leave for its successor, if an administrator has asked for an upgrade.
    pub(super) fn begin_upgrade(
        &mut self,
        process: &ServerProcess,
        supervised: &mut dyn Supervised,
    ) {
        // The administrator of an upgrade that has just ended waits for the answer.
        if self.keeper.upgrade_request.is_none()
            || self.is_upgraded
            || self.keeper.is_told_to_end
            || !matches!(self.handover, Handover::None)
        {
            return;
        }
        if !self.keeper.is_ready {
            return self.refuse_upgrade("the server does not serve yet; wait until it does");
        }
        self.program = match supervised.prepare_upgrade(self.number) {
            Ok(program) => program,
            Err(error) => return self.refuse_upgrade(&error.to_string()),
        };
        let program = &self.program;
        tracing::info!(device = self.options.interface, program, "upgrade: the server leaves");
        process.signal(LEAVE);
        self.handover = Handover::Leaving(Instant::now() + UPGRADE_TIMEOUT);
    }

    /// Takes note that a server has ended. Returns `true` if the next server starts at once, because
    /// of an upgrade.
    pub(super) fn continue_upgrade(
        &mut self,
        status: ExitStatus,
        supervised: &mut dyn Supervised,
    ) -> bool {
        match self.handover {
            Handover::None => false,
            // Killed or not, it has ended.
            Handover::Leaving(_) => {
                self.handover = Handover::Starting(Instant::now() + UPGRADE_TIMEOUT);
                true
            }
            Handover::Starting(_) => {
                let why = format!(
                    "{0} did not serve: {1}; the log may say why; check the program: {0} --version",
                    self.program,
                    self.describe_end(status)
                );
                self.undo_upgrade(&why, supervised)
            }
        }
    }

    /// Goes back to the previous program, if an upgrade is under way. Returns `true` if one was.
    pub(super) fn undo_upgrade(&mut self, why: &str, supervised: &mut dyn Supervised) -> bool {
        if matches!(self.handover, Handover::None) {
            return false;
        }
        self.handover = Handover::None;
        supervised.end_upgrade(self.number, false);
        self.refuse_upgrade(&format!("{why}; the keeper starts a server of the previous program"));
        true
    }

    /// Ends an upgrade whose server serves.
    pub(super) fn finish_upgrade(&mut self, supervised: &mut dyn Supervised) {
        if !matches!(self.handover, Handover::Starting(_)) {
            return;
        }
        self.handover = Handover::None;
        supervised.end_upgrade(self.number, true);
        self.is_upgraded = true;
        tracing::info!(device = self.options.interface, "upgrade: the new server serves");
    }

    /// Returns `true` if an upgrade's server serves, and the keeper is to execute its program.
    pub(crate) fn is_upgraded(&self) -> bool {
        self.is_upgraded
    }

    /// Tells the administrator why the keeper does not execute the program of an upgrade.
    pub(crate) fn goes_on_with_earlier_program(&mut self, why: &str) {
        self.is_upgraded = false;
        let device = &self.options.interface;
        tracing::warn!(device, "the keeper goes on with its earlier program: {why}");
        if let Some(asking) = self.keeper.upgrade_request.take() {
            asking.answer(Ok(Some(why)));
        }
    }

    /// Returns the state for the next program of this process.
    ///
    /// # Errors
    /// If this is no moment for it, with the reason.
    pub(crate) fn state(&self) -> io::Result<KeeperState> {
        let interface = &self.options.interface;
        let server = match &self.stage {
            Stage::Runs(server) if self.keeper.is_ready => server,
            _ => {
                let text = format!("{interface} has no server now; upgrade again once one serves");
                return Err(io::Error::other(text));
            }
        };
        if self.keeper.is_told_to_end {
            return Err(io::Error::other("it is about to end"));
        }
        // The next program takes each request for one whose server serves.
        let is_asked = self.keeper.upgrade_request.is_some() && !self.is_upgraded;
        if is_asked || !matches!(self.handover, Handover::None) {
            let text = format!("an upgrade of {interface} is under way, which is to end first");
            return Err(io::Error::other(text));
        }
        // The kernel ends this process's other threads first, and waits for a thread in a system
        // call that does not return.
        if !self.keeper.held.finish_closing(CLOSE_TIMEOUT) {
            return Err(io::Error::other(
                "it still closes objects of ended sessions; upgrade again later",
            ));
        }
        let mut state = self.keeper.state(&self.listener, &server.process, self.servers_started);
        state.unreaped = self.unreaped.iter().map(|one| one.as_raw_nonzero().get()).collect();
        Ok(self.status.add_to(state))
    }
}
