//! What follows a server that has ended, and how it ended, in words.

use std::process::ExitStatus;
use std::time::Instant;

use super::{CRASH_MEMORY, DeviceKeeper, Handover, Server, Stage};
use crate::ends::{Ends, Next, is_defect};
use crate::supervised::{Supervised, Supervision};
use towpath_protocol::position::{Crash, Positions};

impl DeviceKeeper {
    /// Decides what follows a server that has ended.
    pub(super) fn after_end(
        &mut self,
        server: &Server,
        status: ExitStatus,
        supervised: &mut dyn Supervised,
    ) -> Stage {
        if self.has_counted_crash() {
            self.crash = self.crash_of(status);
        }
        let is_ready = self.keeper.is_ready;
        if self.is_leaving {
            return Stage::Over(self.left());
        }
        let is_last = self.keeper.is_told_to_end || !is_ready && !self.ends.has_served();
        let retries = self.options.retries && server.asked_at.is_none();
        if is_last && !retries {
            return Stage::Over(Supervision::Ended(status));
        }
        if !is_last && self.continue_upgrade(status, supervised) {
            self.ends = Ends::from_now();
            return Stage::Waits(Instant::now());
        }
        self.status.add_end(&self.describe_end_for_users(status));
        let hold = self.options.hold;
        // Servers that end one after the other, each with slow closes, may crash.
        let is_crash = self.crash.is_some() || self.is_closing && !self.unreaped.is_empty();
        let mut next = self.ends.add(is_ready, is_crash, server.begun, hold);
        if is_last || next == Next::None && retries {
            next = self.ends.begin_anew();
            self.begin_anew(supervised);
        }
        next.log(&self.options, &self.describe(status));
        match next {
            Next::None => Stage::Over(Supervision::GaveUp(status)),
            Next::AtOnce => Stage::Waits(Instant::now()),
            Next::AfterCrashes { pause, .. }
            | Next::AfterFailedStarts { pause, .. }
            | Next::Anew { pause, .. } => Stage::Waits(Instant::now() + pause),
        }
    }

    /// Closes the objects that the servers left, and ends an upgrade: the next server begins anew.
    fn begin_anew(&mut self, supervised: &mut dyn Supervised) {
        self.undo_upgrade("the device has failed", supervised);
        self.keeper.held.remove_of_servers();
        (self.crash, self.has_failed) = (None, true);
    }

    /// Returns how a server ended, in words, with the places of its threads.
    fn describe(&self, status: ExitStatus) -> String {
        let places = self.keeper.positions.as_ref().map(Positions::describe).unwrap_or_default();
        let places = if places.is_empty() { places } else { format!(" ({places})") };
        format!("{}{places}", self.describe_end(status))
    }

    /// Returns how a server ended, with its own words if it had any.
    fn describe_end_for_users(&self, status: ExitStatus) -> String {
        let own = self.keeper.failure.as_ref().map(|own| format!(": {own}"));
        self.describe_end(status) + &own.unwrap_or_default()
    }

    /// Returns `true` if the server that has ended came to the point at which it counts the crash of
    /// the one before, and stores a position page of its own.
    fn has_counted_crash(&self) -> bool {
        self.keeper.positions.is_some()
    }

    /// Returns how the server that has ended crashed, if it did. A program that an upgrade tries is
    /// no fault of a session.
    fn crash_of(&self, status: ExitStatus) -> Option<Crash> {
        let leaves = matches!(self.handover, Handover::Leaving(_));
        if matches!(self.handover, Handover::Starting(_)) {
            return None;
        }
        // How a server ended whose descriptors the kernel still closes is not known. Soon after a crash, it counts as crashed.
        let is_crash = match self.is_closing {
            true => !leaves && self.crash_reaped.is_some_and(|at| at.elapsed() < CRASH_MEMORY),
            false => is_defect(status),
        };
        let anywhere = is_crash.then_some(Crash::InUnknownThread);
        self.hung.map(Crash::Hang).or(anywhere)
    }
}
