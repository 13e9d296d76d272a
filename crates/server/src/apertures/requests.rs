//! The requests and reports that are for memories, apertures and tripwires alike.

use towpath_protocol::message::{
    Message, RELEASE_APERTURE, RELEASE_MEMORY, RELEASE_TRIPWIRE, Refusal, Release,
};

use super::lookup::refused;
use super::objects::{Entry, What};
use super::tripwires::{import_tripwire_command, set_tripwire_command};
use crate::connection::Refused;
use crate::control::Control;
use crate::engine::apertures::commands::{ApertureCommand, ApertureReport};
use crate::engine::commands::Command;
use crate::engines::Reply;

impl Control {
    /// Gives the commands of apertures to the first lane's engine, which has all connections.
    pub(super) fn command_first_lane(&mut self, command: ApertureCommand, reply: Reply) {
        self.parts.engines.command_each(vec![Command::Aperture(command)], reply);
    }

    /// Records what became of a command for an aperture.
    pub(crate) fn aperture_report(&mut self, report: &ApertureReport) {
        match *report {
            ApertureReport::Exported { session, number, peer } => {
                self.aperture_entered(session, number, peer);
            }
            ApertureReport::Imported { session, number, entered } => {
                self.aperture_imported(session, number, entered);
            }
        }
    }

    /// Releases an object of a session.
    pub(crate) fn release_object(&mut self, token: u64, release: Release) -> Result<(), Refused> {
        let what = "release";
        let Release { kind, number } = release;
        let none =
            |name| (Refusal::NotFound, format!("{what}: the session has no {name} {number}"));
        let apertures = self.apertures(token, what)?;
        let session = apertures.objects.session;
        let command = match kind {
            RELEASE_MEMORY => {
                apertures.objects.get(What::Memory, number).ok_or_else(|| none("memory"))?;
                apertures.check_unused(number)?;
                let command = ApertureCommand::RemoveMemory { session, number };
                self.command_first_lane(command, Reply::MemoryRemoved(token, number));
                return Ok(());
            }
            RELEASE_APERTURE => {
                let entry = apertures.objects.get(What::Aperture, number);
                match entry.ok_or_else(|| none("aperture"))?.kind {
                    Entry::EXPORTED => self.revoke_aperture(token, number),
                    _ => self.release_import(token, number),
                }
            }
            RELEASE_TRIPWIRE => {
                let entry = apertures.objects.remove(What::Tripwire, number);
                let entry = entry.ok_or_else(|| none("tripwire"))?;
                if entry.kind == Entry::TRIPWIRE {
                    self.forget_tripwire(session, number);
                    Some(set_tripwire_command(session, number, &entry, false))
                } else {
                    self.tripwire_importers.remove(session, number, &entry);
                    Some(import_tripwire_command(session, number, None))
                }
            }
            _ => return Err(refused(Refusal::Malformed, "release: unknown kind of object")),
        };
        match command {
            // The answer follows the engine's part.
            Some(command) => self.command_first_lane(command, Reply::Done(token)),
            None => self.answer(token, &Message::Done),
        }
        Ok(())
    }
}
