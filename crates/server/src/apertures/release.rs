//! The requests and reports that are for memories, apertures and tripwires alike.

use towpath_engine::apertures::commands::{ApertureCommand, ApertureReport};
use towpath_protocol::message::{
    Message, RELEASE_APERTURE, RELEASE_MEMORY, RELEASE_TRIPWIRE, Refusal, Release,
};

use super::lookup::refused;
use super::objects::{Entry, ObjectKind};
use super::tripwires::{import_tripwire_command, set_tripwire_command};
use crate::control::Control;
use crate::engines::Reply;
use crate::refusal::Refused;

impl Control {
    /// Records the outcome of a command for an aperture.
    pub(crate) fn aperture_report(&mut self, report: &ApertureReport) {
        match *report {
            ApertureReport::Exported { session, number, peer } => {
                if let Some(entry) = self.connections.aperture_mut(session, number) {
                    (entry.other_session, entry.other) =
                        peer.map_or((0, 0), |peer| (peer.session, peer.endpoint));
                }
            }
            ApertureReport::Imported { session, number, entered } => {
                // The aperture ended before the engine had the command.
                if !entered && let Some(entry) = self.connections.aperture_mut(session, number) {
                    entry.access = 0;
                }
            }
        }
    }

    /// Releases an object of a session.
    pub(crate) fn release_object(&mut self, token: u64, release: Release) -> Result<(), Refused> {
        let what = "release";
        let Release { kind, number } = release;
        let none =
            |name| (Refusal::NotFound, format!("{what}: the session has no {name} {number}"));
        let apertures = self.connections.apertures(token, what)?;
        let session = apertures.objects.session;
        let command = match kind {
            RELEASE_MEMORY => {
                apertures.objects.get(ObjectKind::Memory, number).ok_or_else(|| none("memory"))?;
                apertures.check_unused(number)?;
                let command = ApertureCommand::RemoveMemory { session, number };
                self.command_first_lane(command, Reply::MemoryRemoved(token, number));
                return Ok(());
            }
            RELEASE_APERTURE => {
                let entry = apertures.objects.get(ObjectKind::Aperture, number);
                match entry.ok_or_else(|| none("aperture"))?.kind {
                    Entry::EXPORTED => self.revoke_aperture(token, number),
                    _ => self.release_import(token, number),
                }
            }
            RELEASE_TRIPWIRE => {
                let entry = apertures.objects.remove(ObjectKind::Tripwire, number);
                let entry = entry.ok_or_else(|| none("tripwire"))?;
                if entry.kind == Entry::TRIPWIRE {
                    self.forget_tripwire(session, number);
                    Some(set_tripwire_command(session, number, &entry, false))
                } else {
                    self.shared.tripwires.remove(session, number, &entry);
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
